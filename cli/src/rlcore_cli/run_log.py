"""`RunLog`: what a run says in the terminal, kept in its folder."""

import contextlib
import logging
from datetime import datetime
from pathlib import Path
from typing import TextIO

LOG = Path("logs", "run.log")
"""The file, in the folder of the run. A resumed run appends to it."""


class RunLog(logging.Handler):
    """Keeps lines and warnings, each with its time. What comes before `open` is kept until then.

    A warning still goes to stderr, as without any handler.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._file: TextIO | None = None
        self._early: list[str] | None = []

    def open(self, folder: Path) -> None:
        """From now on, write into the folder of the run."""
        early, path = self._early or [], folder / LOG
        self._early = None
        with contextlib.suppress(OSError):  # who cannot write there says so of the metrics
            path.parent.mkdir(exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)
            self._file.writelines(early)

    def write(self, line: str) -> None:
        """Keep a line."""
        text = f"{datetime.now():%Y-%m-%d %H:%M:%S}  {line}\n"
        if self._early is not None:
            self._early.append(text)
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # a full disk ends the run where it writes its metrics
            self._file.write(text)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning of any part of the run."""
        self.write(f"warning: {self.format(record)}")
        if logging.lastResort is not None and _handlers(record.name) == [self]:
            logging.lastResort.handle(record)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # it writes what is left
                self._file.close()
        self._file = None
        super().close()


def _handlers(name: str) -> list[logging.Handler]:
    """All that get what the logger `name` is told."""
    found: list[logging.Handler] = []
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        found += logger.handlers
        logger = logger.parent if logger.propagate else None
    return found
