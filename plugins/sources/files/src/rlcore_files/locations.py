"""Where prompts are: `[NAME=]PATH[ROWS][:WEIGHT]`, a file here or behind a URL, or a data set of the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlcore import is_url
from rlcore_files.hub import HubDataset

_NAMED = re.compile(r"([a-z][a-z0-9_]*)=(.+)", re.DOTALL)
_WEIGHTED = re.compile(r"(.+):(\d+(?:\.\d*)?|\.\d+)", re.DOTALL)
_SLICED = re.compile(r"(.+)\[(-?\d*):(-?\d*)(?::(\d*))?\]", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Location:
    """A file of prompts.

    `name`: empty where none was given. `rows`: start, stop and step of the rows to take. `weight`: how often
    prompts are drawn from this file, in proportion to the others.
    """

    path: str
    name: str = ""
    rows: tuple[int | None, int | None, int | None] = (None, None, None)
    weight: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Location:
        """Raises `ValueError`: what is wrong with `text`, as the end of a sentence."""
        if Path(text).exists():
            return cls(path=text)
        path, name, weight = text, "", None
        if named := _NAMED.fullmatch(path):
            name, path = named.groups()
        if weighted := _WEIGHTED.fullmatch(path):
            path, weight = weighted[1], float(weighted[2])
        rows: tuple[int | None, int | None, int | None] = (None, None, None)
        if sliced := _SLICED.fullmatch(path):
            path = sliced[1]
            start, stop, step = (int(part) if part else None for part in sliced.groups()[1:])
            rows = (start, stop, step)
        if weight is not None and not name:
            raise ValueError(f"a weight needs a name, NAME={text}")
        if weight == 0 or rows[2] == 0:
            raise ValueError("a weight, and the step of a slice, must be above 0")
        return cls(path=path, name=name, rows=rows, weight=1.0 if weight is None else weight)

    def absolute(self) -> Location:
        """The same with an absolute path."""
        is_elsewhere = is_url(self.path) or HubDataset.of(self.path) is not None
        path = self.path if is_elsewhere else os.path.abspath(self.path)
        return Location(path=path, name=self.name, rows=self.rows, weight=self.weight)

    @property
    def is_whole(self) -> bool:
        return self.rows == (None, None, None)

    def __str__(self) -> str:
        """What `parse` reads."""
        text = f"{self.name}={self.path}" if self.name else self.path
        if not self.is_whole:
            bounds = ["" if bound is None else str(bound) for bound in self.rows]
            text += f"[{':'.join(bounds if bounds[2] else bounds[:2])}]"
        return f"{text}:{self.weight:g}" if self.weight != 1 else text


def parse_all(given: str | Sequence[str]) -> tuple[Location, ...]:
    """One location or several, each with a name of its own. Raises `ValueError`, as `Location.parse`."""
    locations = tuple(map(Location.parse, [given] if isinstance(given, str) else given))
    names = [location.name for location in locations]
    if len(locations) > 1 and (not all(names) or len(set(names)) < len(names)):
        raise ValueError("several sources need a name each, NAME=PATH")
    if not locations:
        raise ValueError("expected a path")
    return locations


def absolute_all(given: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """For a field's validator: the same locations with absolute paths."""
    paths = tuple(str(location.absolute()) for location in parse_all(given))
    return paths[0] if isinstance(given, str) else paths
