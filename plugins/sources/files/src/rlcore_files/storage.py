"""Files of rows, read in order or at a place: .jsonl and .parquet, on disk or behind a URL."""

import codecs
import json
import math
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, ClassVar, Never

from rlcore import DataError, Json, first_line, is_url, open_file
from rlcore_files.hub import SUFFIXES, HubDataset, files_at

_GROUPS_KEPT = 2
"""Decoded row groups of a parquet file that stay in memory."""


@dataclass(frozen=True, slots=True)
class Located:
    """A row, its number (from 1; in .jsonl the line), and its place for `RowFile.at`."""

    number: int
    place: int
    row: Json


class RowFile(ABC):
    """A file of rows. It is opened at the first read, and closed with this object."""

    is_json: ClassVar[bool] = False
    """Whether a row can hold nothing but JSON."""

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def rows(self) -> Generator[Located, None, None]:
        """Every row. Raises `DataError` naming file, line and reason where one is malformed.

        Close it where not all are read.
        """

    @abstractmethod
    def at(self, place: int, number: int) -> Json:
        """The row at `place`, which is number `number`. Raises `DataError` as `rows`."""

    @abstractmethod
    def where(self, number: int) -> str:
        """The row as an error names it: file and number."""

    def block(self, place: int) -> int:
        """The number of the block that holds `place`.

        A block is read as a whole; a file without any is block 0.
        """
        return 0


def row_file(path: str) -> RowFile:
    """The file at `path`. Raises `DataError` where it does not exist or has another format."""
    if HubDataset.of(path) is not None:
        parts = [Parquet(url) for url in files_at(path)]
        return parts[0] if len(parts) == 1 else Parts(path, parts)
    if not is_url(path):
        if not Path(path).exists():
            raise DataError(f"{path}: no such file.")
        if not Path(path).is_file():
            raise DataError(f"{path}: expected a .jsonl or .parquet file, found a folder.")
    if path.endswith(".jsonl"):
        return JsonLines(path)
    if path.endswith(".parquet"):
        return Parquet(path)
    raise DataError(f"{path}: expected a name that ends in {' or '.join(SUFFIXES)}.")


def _kept_open(owner: RowFile, path: str) -> IO[bytes]:
    """The file, which is closed when `owner` is garbage-collected."""
    file = open_file(path)
    weakref.finalize(owner, file.close)
    return file


class JsonLines(RowFile):
    """A place is the offset of a line's first byte. Blank lines are no rows.

    The file may begin with a byte-order mark.
    """

    is_json = True

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._file: IO[bytes] | None = None

    def rows(self) -> Generator[Located, None, None]:
        with open_file(self.path) as lines:
            place = 0
            for number, line in enumerate(self._guarded(lines), 1):
                if self._text(line, number).strip():
                    yield Located(number, place, self._parsed(line, number))
                place += len(line)

    def at(self, place: int, number: int) -> Json:
        if self._file is None:
            self._file = _kept_open(self, self.path)
        with self._reading():
            self._file.seek(place)
            line = self._file.readline()
        return self._parsed(line, number)

    def where(self, number: int) -> str:
        return f"{self.path}, line {number}"

    def _guarded(self, lines: IO[bytes]) -> Iterator[bytes]:
        with self._reading():
            yield from lines

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror or error}.") from error

    @staticmethod
    def _text(line: bytes, number: int) -> bytes:
        # Windows' editors begin a file with a byte-order mark
        return line.removeprefix(codecs.BOM_UTF8) if number == 1 else line

    def _parsed(self, line: bytes, number: int) -> Json:
        where = self.where(number)
        try:
            # without the line break, which would count as a line of its own in errors
            text = self._text(line, number).decode("utf-8").rstrip("\r\n")
            return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: not UTF-8 at byte {error.start}.") from error
        except json.JSONDecodeError as error:
            fault = f"{error.msg.removesuffix(' at')} at column {error.colno}"
            if number == 1 and text.strip() == "[":
                fault = "the file is one array; write each row on a line of its own"
            raise DataError(f"{where}: not JSON: {fault}.") from error
        except RecursionError as error:
            raise DataError(f"{where}: not JSON that can be read: nested too deeply.") from error
        except ValueError as error:
            raise DataError(f"{where}: not JSON: {error}.") from error


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is no JSON number, or too large for one")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse_constant(digits)


class Parquet(RowFile):
    """A place is the row's number from 0; a block is a row group."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._table: Any = None
        self._starts: list[int] = []
        self._groups: OrderedDict[int, list[Json]] = OrderedDict()

    def rows(self) -> Generator[Located, None, None]:
        number = 0
        with self._reading():
            for batch in self._opened().iter_batches(batch_size=4096):
                for row in batch.to_pylist():
                    number += 1
                    yield Located(number, number - 1, row)

    def at(self, place: int, number: int) -> Json:
        group = self.block(place)
        return self._group(group)[place - self._starts[group]]

    def where(self, number: int) -> str:
        return f"{self.path}, row {number}"

    @property
    def count(self) -> int:
        """Its rows."""
        return int(self._opened().metadata.num_rows)

    @property
    def groups(self) -> int:
        """Its row groups."""
        return int(self._opened().metadata.num_row_groups)

    def block(self, place: int) -> int:
        self._opened()
        return bisect_right(self._starts, place) - 1

    def _group(self, group: int) -> list[Json]:
        if group not in self._groups:
            with self._reading():
                self._groups[group] = self._opened().read_row_group(group).to_pylist()
            if len(self._groups) > _GROUPS_KEPT:
                self._groups.popitem(last=False)
        self._groups.move_to_end(group)
        return self._groups[group]

    def _opened(self) -> Any:
        """The `ParquetFile`."""
        if self._table is None:
            with self._reading():
                from pyarrow import parquet

                self._table = parquet.ParquetFile(_kept_open(self, self.path))
            metadata = self._table.metadata
            sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            self._starts = [0, *accumulate(sizes)][:-1]
        return self._table

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            import pyarrow
            from pyarrow import parquet  # noqa: F401 - it may be missing alone
        except ImportError as error:  # it is not there, or not made for this numpy
            raise DataError(f"{self.path}: needs a pyarrow that works ({first_line(error)}).") from error
        try:
            yield
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{self.path}: cannot be read as parquet: {first_line(error)}.") from error


class Parts(RowFile):
    """Parquet files one after another, as one. A place is the row's number from 0 over all of them."""

    def __init__(self, path: str, parts: Sequence[Parquet]) -> None:
        super().__init__(path)
        self._parts = parts

    def rows(self) -> Generator[Located, None, None]:
        number = 0
        for part in self._parts:
            for located in part.rows():
                number += 1
                yield Located(number, number - 1, located.row)

    def at(self, place: int, number: int) -> Json:
        part = self._part(place)
        return self._parts[part].at(place - self._starts[part], number)

    def where(self, number: int) -> str:
        return f"{self.path}, row {number}"

    def block(self, place: int) -> int:
        part = self._part(place)
        groups = sum(one.groups for one in self._parts[:part])
        return groups + self._parts[part].block(place - self._starts[part])

    def _part(self, place: int) -> int:
        return bisect_right(self._starts, place) - 1

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(part.count for part in self._parts)][:-1]
