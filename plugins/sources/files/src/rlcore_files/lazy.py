"""Prompts that stay in their file until they are used."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import overload

import numpy as np

from rlcore import Json, Prompt
from rlcore_files.locations import Location
from rlcore_files.storage import Located, RowFile

Read = Callable[[Json, str, int], Prompt]
"""(row, where it stands, its number) → the prompt. Raises `DataError` where the row is malformed."""


class LazyPrompts(Sequence[Prompt]):
    """The prompts of a file.

    It holds an index of 16 bytes for each row, and reads a prompt when it is asked for it. `numbers`,
    `places`: of each row, as in `Located`.
    """

    def __init__(self, file: RowFile, read: Read, numbers: Sequence[int], places: Sequence[int]) -> None:
        self._file = file
        self._read = read
        self._numbers = numbers
        self._places = places

    @classmethod
    def of(cls, file: RowFile, read: Read, rows: Iterable[Located]) -> LazyPrompts:
        """The prompts of `rows` of `file`.

        Each row is read once now, so that a malformed one is refused.
        """
        numbers, places = array("q"), array("q")
        for located in rows:
            read(located.row, file.where(located.number), located.number)
            numbers.append(located.number)
            places.append(located.place)
        return cls(file, read, numbers, places)

    @property
    def blocks(self) -> Sequence[int]:
        """Lengths of the runs of prompts that the file is read in: one for all, or one for each row group."""
        ids = np.fromiter(map(self._file.block, self._places), np.int64, len(self))
        edges = np.flatnonzero(np.diff(ids)) + 1
        lengths: list[int] = np.diff([0, *edges.tolist(), len(self)]).tolist()
        return lengths

    def chosen(self, places: Iterable[int]) -> LazyPrompts:
        """The prompts at `places`, in that order, still unread."""
        kept = array("q", places)
        numbers = array("q", (self._numbers[place] for place in kept))
        return LazyPrompts(self._file, self._read, numbers, array("q", (self._places[p] for p in kept)))

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> Prompt: ...

    @overload
    def __getitem__(self, place: slice) -> LazyPrompts: ...

    def __getitem__(self, place: int | slice) -> Prompt | LazyPrompts:
        if isinstance(place, slice):
            return self.chosen(range(*place.indices(len(self))))
        number = self._numbers[place]
        return self._read(self._file.at(self._places[place], number), self._file.where(number), number)


def sliced(rows: Iterable[Located], location: Location) -> Iterable[Located]:
    """Those of `rows` that `location` takes. No row after the last one taken is read."""
    start, stop, step = location.rows
    if (start or 0) >= 0 and (stop or 0) >= 0:
        return islice(rows, start, stop, step)
    return list(rows)[start:stop:step]


def chosen(prompts: Sequence[Prompt], places: Iterable[int]) -> Sequence[Prompt]:
    """The prompts at `places`, in that order."""
    return prompts.chosen(places) if isinstance(prompts, LazyPrompts) else [prompts[at] for at in places]
