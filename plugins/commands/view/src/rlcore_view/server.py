"""The server of the page: on loopback, for whoever has the token, until nobody asks any more."""

import contextlib
import gzip
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from rlcore import Json, RlcoreError, parse_json
from rlcore_view.page import TYPES

HOST = "127.0.0.1"
REQUEST_SECONDS = 30
"""Time of a client for its request, and for taking the answer."""
LOOK_SECONDS = 0.5
MOST_POSTED = 2**16
"""Bytes of a note."""
SMALL = 2048
"""Bytes that are not worth packing."""
_HEADERS = {
    "Cache-Control": "no-store",
    # nothing is loaded from elsewhere, and the token goes nowhere
    "Content-Security-Policy": "default-src 'self' data: blob:; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageServer:
    """Serves `files`, and under `data/` what `answer` says, at `url`. KeyError of it is a 404.

    What is posted under `note/` goes to `note`, and a ValueError of it is a 400.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        answer: Callable[[str], Json],
        note: Callable[[str, Json], None],
        *,
        port: int,
        idle_s: float,
    ) -> None:
        """Raises `OSError` where the port is taken; 0 takes a free one."""
        self._files, self._answer, self._note, self._idle_s = files, answer, note, idle_s
        self._token = secrets.token_urlsafe(24)
        self._asking = threading.Lock()  # what was read of the files is shared
        self._last = time.monotonic()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_SECONDS
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # the browser may leave at any time
                    super().handle()

            def do_GET(self) -> None:
                owner._serve(self)

            def do_POST(self) -> None:
                owner._take(self)

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer((HOST, port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{HOST}:{self._server.server_address[1]}/{self._token}/"

    def run(self) -> None:
        """Serve until nobody has asked for `idle_s`. Ctrl-C ends it too."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            while time.monotonic() - self._last < self._idle_s:
                time.sleep(min(LOOK_SECONDS, self._idle_s))
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _path(self, request: BaseHTTPRequestHandler) -> str | None:
        """What is asked for; None: by somebody without the token, who has been refused."""
        _, token, path = (request.path.partition("?")[0] + "//").split("/", 2)
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            request.send_error(HTTPStatus.FORBIDDEN, "the address lacks the token that rlcore view printed")
            return None
        self._last = time.monotonic()
        return path.removesuffix("//")

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        if (path := self._path(request)) is None:
            return
        try:
            body, kind = self._body(path or "index.html")
        except KeyError:
            request.send_error(HTTPStatus.NOT_FOUND)
        except (OSError, ValueError) as error:  # of a file that is gone, unreadable or damaged
            request.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=str(error))
        else:
            _send(request, body, kind)

    def _take(self, request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True  # of what is refused, the body is not read
        if (path := self._path(request)) is None:
            return
        length = request.headers.get("Content-Length", "")
        if not (length.isdecimal() and int(length) <= MOST_POSTED):
            request.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        place, _, name = path.partition("/")
        try:
            if place != "note":
                raise KeyError(path)
            with self._asking:
                self._note(name, parse_json(request.rfile.read(int(length))))
        except KeyError:
            request.send_error(HTTPStatus.NOT_FOUND)
        except ValueError as error:
            request.send_error(HTTPStatus.BAD_REQUEST, explain=str(error))
        except (OSError, RlcoreError) as error:  # of a disk that is full, or that others own
            request.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=str(error))
        else:
            _send(request, b"null", TYPES["json"])

    def _body(self, path: str) -> tuple[bytes, str]:
        if path in self._files:
            return self._files[path], TYPES[path.rpartition(".")[2]]
        place, _, name = path.partition("/")
        if place != "data":
            raise KeyError(path)
        with self._asking:
            return json.dumps(self._answer(unquote(name)), ensure_ascii=False).encode(), TYPES["json"]


def _send(request: BaseHTTPRequestHandler, body: bytes, kind: str) -> None:
    packed = len(body) > SMALL and "gzip" in request.headers.get("Accept-Encoding", "")
    if packed:
        body = gzip.compress(body, compresslevel=3)
    request.send_response(HTTPStatus.OK)
    for name, value in _HEADERS.items():
        request.send_header(name, value)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(body)))
    if packed:
        request.send_header("Content-Encoding", "gzip")
    request.end_headers()
    request.wfile.write(body)
