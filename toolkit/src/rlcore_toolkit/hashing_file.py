"""Files whose sha256 is computed while they are written, for the report of a conversion."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rlcore import ConversionReport


class HashingFile:
    """A file to append to, and its digest."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`, whose items are bytes."""
        self._stream.write(data)
        self.digest.update(data)
        self.size += len(data)

    def flush(self) -> None:
        """Does nothing; `torch.save` calls it."""
        self._stream.flush()


@contextmanager
def hashing_file(file: Path, report: ConversionReport) -> Iterator[HashingFile]:
    """A new `file` to append to; `report` has its digest afterwards."""
    with file.open("xb") as stream:
        out = HashingFile(stream)
        yield out
    report.files[file.name] = {"bytes": out.size, "sha256": out.digest.hexdigest()}
