"""What a conversion wrote: the sha256 of each file and a checksum of each tensor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

FILE = "checksums.json"


@dataclass
class Report:
    """`files`: name → bytes and sha256. `tensors`: name → `rlcore.checksums.checksum`."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Of all files."""
        return sum(file["bytes"] for file in self.files.values())

    def add(self, other: Report) -> None:
        """Take over what another process wrote."""
        self.files |= other.files
        self.tensors |= other.tensors

    def write(self, folder: Path) -> None:
        """Write `folder/checksums.json`."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1) + "\n")


class Hashing:
    """A file that is only appended to, and its digest."""

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
        """torch.save asks for it."""
        self._stream.flush()


@contextmanager
def hashing(file: Path, report: Report) -> Iterator[Hashing]:
    """A new `file` to append to; `report` has its digest afterwards."""
    with file.open("xb") as stream:
        out = Hashing(stream)
        yield out
    report.files[file.name] = {"bytes": out.size, "sha256": out.digest.hexdigest()}
