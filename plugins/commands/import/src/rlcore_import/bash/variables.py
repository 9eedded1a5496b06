"""What a bash script has set so far: variables, arrays, functions, and what is not known of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from rlcore_import.bash.words import MARKED, counted

_NAME_ALONE = re.compile(r"\$\{?([A-Za-z_]\w*|\d+)\}?")
_LONGEST = 1_000_000
"""Characters of a text that are read."""

ARGUMENTS = "@"
"""The name of the script's, or the function's, own arguments where they are unknown."""

Part = tuple[Any, ...]
"""All that a name stands for: what `Variables.part` gives and `put` takes."""


@dataclass
class Variables:
    """The variables and arrays of a script so far. `fixed`: variables that the script cannot set.

    `unknown`: names whose value is not known, and why. `changed`: the names of all changes so far.
    `script`: the path that `$0` and `$BASH_SOURCE` stand for. `own`: the arguments of the function that runs.
    `files`: what the script writes, by path. `functions`: what they run.
    """

    variables: dict[str, str]
    fixed: frozenset[str]
    arrays: dict[str, list[str]] = field(default_factory=dict)
    script: Path = Path()
    own: list[str] | None = None
    files: dict[str, str] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)

    def assign(self, name: str, value: str, why: str) -> None:
        """An unknown value leaves the variable unknown, but for a text of flags, or of the environment's
        variables: some of them are known.
        """
        if name in self.fixed:
            return
        if name in self.arrays:  # its first item
            self.changed.append(name)
            self.arrays[name][:1] = [value]
            return
        self._drop(name)
        if len(value) > _LONGEST:
            self.unknown[name] = why
        elif (
            "--" in value
            or '"env_vars"' in value
            or not (MARKED.search(value) or "$" in value or "`" in value)
        ):
            self.variables[name] = value
        elif not self._unset(value):
            self.unknown[name] = why

    def copy(self) -> Self:
        """For a shell of its own, or a branch that may not run."""
        arrays = {name: [*items] for name, items in self.arrays.items()}
        copies: dict[str, Any] = {
            name: dict(getattr(self, name)) for name in ("variables", "files", "functions", "unknown")
        }
        return replace(self, arrays=arrays, **copies)

    def forget(self, name: str, why: str) -> None:
        """What is set as the script runs."""
        if name not in self.fixed:
            self._drop(name)
            self.unknown[name] = why

    def unset(self, name: str) -> None:
        """`unset NAME`."""
        if name not in self.fixed:
            self._drop(name)
            self.functions.pop(name, None)

    def arguments(self, items: list[str] | None, unknown: str | None = None) -> None:
        """What `$@` stands for from now on."""
        self._drop(ARGUMENTS)
        self.own = items
        if unknown is not None:
            self.unknown[ARGUMENTS] = unknown

    def shift(self, count: int | None) -> None:
        """`shift 2`; None: by an unknown number."""
        if self.own is not None and ARGUMENTS not in self.unknown:
            if count is None or not counted(self.own[:count]):
                self.forget(ARGUMENTS, "an unknown `shift` changes")
            elif count <= len(self.own):
                self.arguments(self.own[count:])

    def merge(self, other: Variables, why: str) -> None:
        """After a branch that may not have run: what differs is not known."""
        for kind in ("variables", "arrays", "functions", "files", "unknown"):
            ours, theirs = getattr(self, kind), getattr(other, kind)
            for name in {name for name in (*ours, *theirs) if ours.get(name, self) != theirs.get(name, self)}:
                ours.pop(name, None)
                if kind != "files":
                    self.forget(f"{name}()" if kind == "functions" else name, why)
        if self.own != other.own:
            self.forget(ARGUMENTS, why)

    def part(self, name: str) -> Part:
        """What `put` takes back: all that a name stands for."""
        return self.variables.get(name), self.arrays.get(name), self.unknown.get(name)

    def put(self, name: str, part: Part) -> None:
        """Make a name what it was."""
        self._drop(name)
        kinds: tuple[dict[str, Any], ...] = (self.variables, self.arrays, self.unknown)
        for kind, value in zip(kinds, part, strict=True):
            if value is not None:
                kind[name] = value

    def _drop(self, name: str) -> None:
        self.changed.append(name)
        for kind in (self.variables, self.arrays, self.unknown):
            kind.pop(name, None)

    def _unset(self, value: str) -> bool:
        """Whether all of it are variables that nothing sets: bash sees "", if its environment has none."""
        rest = MARKED.sub(lambda held: "" if self._is_free(held[2]) else held[0], value)
        return not rest

    def _is_free(self, element: str) -> bool:
        alone = _NAME_ALONE.fullmatch(element)
        return alone is not None and alone[1] not in self.unknown
