"""Keep the log of an HTTP server small, whatever anybody sends it."""

import logging

MOST_LINES = 100
"""Lines in the log of a process about requests that are no HTTP, or no body of their Content-Encoding."""
_FAULTS = frozenset({"RequestPayloadError", "PayloadEncodingError", "HttpProcessingError"})
"""What aiohttp raises for them, with the classes that derive from these."""


class ClientFaults(logging.Filter):
    """Makes one line of each fault of a client, without its traceback, and drops those beyond `MOST_LINES`.

    The log needs no token, so anybody on the host could fill the disk. A fault of the server keeps its
    traceback.
    """

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged; it is changed."""
        kind, error = record.exc_info[:2] if record.exc_info else (None, None)
        if kind is None or not _FAULTS & {each.__name__ for each in kind.__mro__}:
            return True
        self._count += 1
        further = " Further ones are not logged." if self._count == MOST_LINES else ""
        record.msg = f"A client sent no HTTP: {' '.join(str(error).split())[:200]}.{further}"
        record.args, record.exc_info, record.exc_text = (), None, None
        return self._count <= MOST_LINES


_CLIENT_FAULTS = ClientFaults()


def shorten_http_log() -> None:
    """Log faults of clients of aiohttp's servers in this process by `ClientFaults`. May be called again."""
    logging.getLogger("aiohttp.server").addFilter(_CLIENT_FAULTS)
