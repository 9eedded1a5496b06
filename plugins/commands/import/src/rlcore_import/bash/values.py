"""What a word of a bash script stands for: its quotes, variables, defaults, sums and a few commands.

What has no known value is kept as it stands, between marks, and so it reaches the table of flags.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlcore import ConfigError
from rlcore_import.bash.sums import SETS, of_sum
from rlcore_import.bash.words import after_element

_SPLIT, _EMPTY, _HELD, _HELD_QUOTED, _END = "\0\1\2\3\4"
"""Marks: words end here, "", an unknown value outside of quotes, one within, and where it ends."""

_MARKED = re.compile(f"([{_HELD}{_HELD_QUOTED}])([^{_END}]*){_END}")
_BLANKS = re.compile(rf"({_MARKED.pattern})|\s+")
_NAMED = re.compile(r"([A-Za-z_]\w*|\d+)(?:\[(\w+|@|\*)\])?(.*)", re.DOTALL)
_NAME_ALONE = re.compile(r"\$\{?([A-Za-z_]\w*|\d+)\}?")
_OR = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_SEQUENCE = re.compile(r"seq (-?\d+) (?:(-?\d+) )?(-?\d+)")
_FOLDER = re.compile(r"cd\s+(?:--\s+|-P\s+)*(.+?)(?:\s*&?>\s*\S+)?(?:\s*2>&1)?\s*(?:&&|;)\s*pwd(?:\s+-P)?")
_PATH_OF = re.compile(r"(dirname|basename|realpath|readlink)\s+(?:--?\w*\s+)*(.+)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_LONGEST, _MOST = 1_000_000, 10_000
"""Characters of a text, and words of a list, that are read."""

ARGUMENTS = "@"
"""The name of the script's, or the function's, own arguments where they are unknown."""


@dataclass
class Values:
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
    _whole: bool = False
    """Whether a text is made, which blanks do not split."""

    def fields(self, word: str) -> list[str]:
        """The words that bash makes of one."""
        found = _SPLIT.join(self._expand(one, quoted=False) for one in braced(word))
        return [one.replace(_EMPTY, "") for one in found.split(_SPLIT) if one]

    def text(self, word: str, quoted: bool = False) -> str:
        """Of an assignment: all in one."""
        outer, self._whole = self._whole, True
        found = self._expand(word, quoted=quoted).replace(_SPLIT, " ").replace(_EMPTY, "")
        self._whole = outer
        return found

    def known(self, word: str) -> str | None:
        """The same; None: part of it is not known."""
        found = self.text(word)
        return None if _MARKED.search(found) else found

    def assign(self, name: str, value: str, why: str) -> None:
        """An unknown value leaves the variable unknown, but for a text of flags: some of them are known."""
        if name in self.fixed:
            return
        if name in self.arrays:  # its first item
            self.changed.append(name)
            self.arrays[name][:1] = [value]
            return
        self._drop(name)
        if len(value) > _LONGEST:
            self.unknown[name] = why
        elif "--" in value or not (_MARKED.search(value) or "$" in value or "`" in value):
            self.variables[name] = value
        elif not self._unset(value):
            self.unknown[name] = why

    def copy(self) -> Values:
        """For a shell of its own, or a branch that may not run."""
        arrays = {name: [*items] for name, items in self.arrays.items()}
        return replace(
            self,
            arrays=arrays,
            variables=dict(self.variables),
            files=dict(self.files),
            functions=dict(self.functions),
            unknown=dict(self.unknown),
        )

    def all_fields(self, words: Sequence[str]) -> list[str]:
        return [one for word in words for one in self.fields(word)]

    def extend(self, name: str, words: Sequence[str], more: bool) -> None:
        """An array anew, or by `more` behind what it holds."""
        held: list[str] = []
        if more and name in self.unknown:
            return
        if more:
            held = self.arrays.get(name) or ([self.variables[name]] if name in self.variables else [])
        items = [*held, *self.all_fields(words)]
        if len(items) > _MOST:
            raise ConfigError(f"{name}: found {len(items)} words, expected at most {_MOST}; write fewer.")
        self._drop(name)
        self.arrays[name] = items

    def replace_item(self, name: str, index: str, word: str) -> bool:
        """`A[1]=b`; False: the array has no such item."""
        items = self.arrays.get(name, [])
        if not (index.isdigit() and int(index) < len(items) and _counted(items)):
            return False
        self.changed.append(name)
        items[int(index)] = self.text(word)
        return True

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
            if count is None or not _counted(self.own[:count]):
                self.forget(ARGUMENTS, "an unknown `shift` changes")
            elif count <= len(self.own):
                self.arguments(self.own[count:])

    def merge(self, other: Values, why: str) -> None:
        """After a branch that may not have run: what differs is not known."""
        for kind in ("variables", "arrays", "functions", "files", "unknown"):
            ours, theirs = getattr(self, kind), getattr(other, kind)
            for name in {name for name in (*ours, *theirs) if ours.get(name, self) != theirs.get(name, self)}:
                ours.pop(name, None)
                if kind != "files":
                    self.forget(f"{name}()" if kind == "functions" else name, why)
        if self.own != other.own:
            self.forget(ARGUMENTS, why)

    def part(self, name: str) -> tuple[Any, ...]:
        """What `put` takes back: all that a name stands for."""
        return self.variables.get(name), self.arrays.get(name), self.unknown.get(name)

    def put(self, name: str, part: tuple[Any, ...]) -> None:
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
        rest = _MARKED.sub(lambda held: "" if self._is_free(held[2]) else held[0], value)
        return not rest

    def _is_free(self, element: str) -> bool:
        alone = _NAME_ALONE.fullmatch(element)
        return alone is not None and alone[1] not in self.unknown

    def _expand(self, word: str, quoted: bool) -> str:
        found, at = "", 0
        while at < len(word):
            try:
                end = after_element(word, at, quoted)
            except ValueError:  # in a file that the script writes: an open bracket is a text there
                end = at + 1
            found += self._element(word[at:end], quoted)
            at = end
        return found

    def _element(self, element: str, quoted: bool) -> str:
        first = element[0]
        if element.startswith("$'") and not quoted:
            return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), element[2:-1]) or _EMPTY
        if first == "'" and not quoted:
            return element[1:-1] or _EMPTY
        if element.startswith(('"', '$"')) and not quoted:
            inner = element[element.index('"') + 1 : -1]
            no_word = inner in ("$@", "${@}") or inner.endswith("[@]}")
            return self._expand(inner, quoted=True) or ("" if no_word else _EMPTY)
        if first == "\\":
            return element if quoted and element[1:] not in ("$", "`", '"', "\\") else element[1:]
        if first not in "$`" or element == "$":
            return element
        value = self._value(element, quoted)
        if value is not None:
            return value
        element = f"$({element[1:-1]})" if first == "`" else element  # a `$` tells that it is not known
        return f"{_HELD_QUOTED if quoted else _HELD}{element}{_END}"

    def _value(self, element: str, quoted: bool) -> str | None:
        """Of what begins with `$` or a backquote; None: it is not known."""
        if element.startswith("$(("):
            return self.sum(element[3:-2])
        if element.startswith(("$(", "`")):
            return self._split(self._command(element[2:-1] if element[0] == "$" else element[1:-1]), quoted)
        return self._parameter(element[2:-1] if element.startswith("${") else element[1:], quoted)

    def _parameter(self, inside: str, quoted: bool) -> str | None:
        """Of what `${…}` holds."""
        if inside in ("@", "*"):
            items = None if ARGUMENTS in self.unknown else self.own or []
            return self._list(items, quoted, joined=inside == "*")
        if inside == "#":
            return str(len(self.own)) if self.own is not None and self._counts(self.own) else None
        if inside.startswith("#"):
            return self._length(inside[1:])
        named = _NAMED.fullmatch(inside)
        if named is None or named[1] in self.unknown:
            return None
        name, index, rest = named.groups()
        either = _OR.fullmatch(rest)
        if index in ("@", "*"):
            items = self.arrays.get(name) or ([self.variables[name]] if name in self.variables else [])
            if either and not _counted(items):
                return None
            value = self._list(items, quoted, joined=index == "*")
            present = bool(items)
        else:
            found = self._variable(name, index)
            value, present = (
                self._split(found, quoted),
                found is not None and bool(found or not rest.startswith(":")),
            )
        if either is not None:
            return self._either(name, value, present, either, quoted)
        if rest:
            return self._split(_part(self._variable(name, index), rest), quoted) if index is None else None
        beyond = name.isdigit() and self.own is not None and self._counts(self.own)
        return "" if value is None and beyond else value

    def _either(
        self, name: str, value: str | None, present: bool, either: re.Match[str], quoted: bool
    ) -> str | None:
        """`${A:-b}`, `${A:=b}`, `${A:+b}` and `${A:?b}`."""
        _, kind, other = either.groups()
        if kind == "+":
            return self._other(other, quoted) if present else ""
        if present or kind == "?":
            return value if present else None
        if kind == "=" and (found := self.known(other)) is not None:
            self.assign(name, found, "")
        return self._other(other, quoted)

    def _other(self, word: str, quoted: bool) -> str | None:
        """What stands in for a value."""
        if quoted or not re.search(r"\s", word) or after_element(word, 0) == len(word):
            found = self._expand(word.replace('"', "") if quoted else word, quoted)
            return None if _MARKED.search(found) else found
        return None if re.search(r"[\"'\\]", word) else self._split(self.known(word), quoted)

    def _list(self, items: list[str] | None, quoted: bool, joined: bool) -> str | None:
        if items is None or (joined and quoted and self._splits_otherwise()):
            return None
        if quoted:
            return " ".join(items) if joined else _SPLIT.join(item or _EMPTY for item in items)
        parts = [self._split(item, quoted) for item in items]
        return None if None in parts else _SPLIT.join(part for part in parts if part)

    def _split(self, value: str | None, quoted: bool) -> str | None:
        """Outside of quotes bash makes words of a value."""
        if value is None or quoted or self._whole:
            return value
        if self._splits_otherwise():
            return None
        return _BLANKS.sub(lambda match: match[1] or _SPLIT, value)

    def _splits_otherwise(self) -> bool:
        """Whether the script has set `IFS`."""
        return "IFS" in self.unknown or "IFS" in self.variables

    def _length(self, inside: str) -> str | None:
        name = inside.removesuffix("[@]").removesuffix("[*]")
        if name in self.unknown:
            return None
        if name != inside and name not in self.variables:
            items = self.arrays.get(name, [])
            return str(len(items)) if _counted(items) else None
        value = self._variable(name)
        return None if value is None else str(len(value) if name == inside else 1)

    def _counts(self, items: list[str]) -> bool:
        return ARGUMENTS not in self.unknown and _counted(items)

    def _variable(self, name: str, index: str | None = None) -> str | None:
        if name == "0" or (name == "BASH_SOURCE" and index in (None, "0")):
            return str(self.script)
        if name.isdigit():
            own = (self.own or [])[: int(name)]
            return own[-1] if len(own) == int(name) and self._counts(own[:-1]) else None
        if name in self.variables and index is None:
            return self.variables[name]
        number = int(index) if index and index.isdigit() else 0 if index is None else -1
        items = self.arrays.get(name, [])[: number + 1]
        return items[-1] if len(items) == number + 1 > 0 and _counted(items[:-1]) else None

    def _command(self, line: str) -> str | None:
        """Of the commands that say where the script lies, and of `seq`."""
        line = line.strip()
        if line == "pwd":
            return None
        if folder := _FOLDER.fullmatch(line):
            known = self.known(folder[1].strip())
            return None if known is None else str(Path(known).resolve())
        if found := _PATH_OF.fullmatch(line):
            known = self.known(found[2].strip())
            return None if known is None else _path_of(found[1], Path(known))
        sequence = _SEQUENCE.fullmatch(self.text(line))
        return _sequence(sequence) if sequence else None

    def sum(self, line: str) -> str | None:
        """Of `$((…))`."""
        plain = self.text(line, quoted=True)
        for found in SETS.finditer(plain):
            self.forget(found[1] or found[2], "a sum sets")
        names = re.sub(r"(?<!\w)[A-Za-z_]\w*", self._of_name, plain)
        value = of_sum(names)
        return None if value is None else str(value)

    def _of_name(self, name: re.Match[str]) -> str:
        value = self._variable(name[0])
        return f"({value})" if value else name[0]


def plain(text: str) -> str:
    """`text` without the marks of what is unknown."""
    return _MARKED.sub(lambda held: held[2], text).replace(_EMPTY, "")


def _counted(items: Sequence[str]) -> bool:
    """Whether each is one word: an unknown value without quotes may be none, or two."""
    return not any(_HELD in item or (_HELD_QUOTED in item and "[@]" in item) for item in items)


def is_known(text: str) -> bool:
    """Whether `text` has no such marks."""
    return _MARKED.search(text) is None


def braced(word: str) -> list[str]:
    """`a{1,2}` as a1 and a2, and `{1..3}` as 1, 2 and 3."""
    at = 0
    while at < len(word):
        if word[at] == "{" and (found := _alternatives(word, at)):
            parts, end = found
            return [one for part in parts for one in braced(f"{word[:at]}{part}{word[end:]}")]
        try:
            at = after_element(word, at)
        except ValueError:
            at += 1
    return [word]


def _alternatives(word: str, start: int) -> tuple[list[str], int] | None:
    """Of the brace at `start`, and where it ends; None: it stands for itself."""
    depth, at, parts = 0, start, [start + 1]
    while at < len(word):
        if word[at] == "}" and depth == 1:
            inside = [word[a : b - 1] for a, b in itertools.pairwise([*parts, at + 1])]
            if len(inside) == 1:
                inside = _numbers(inside[0])
            return (inside, at + 1) if inside else None
        depth += (word[at] == "{") - (word[at] == "}")
        if word[at] == "," and depth == 1:
            parts.append(at + 1)
        at = at + 1 if word[at] in "{}," else after_element(word, at)
    return None


def _numbers(inside: str) -> list[str]:
    numbers = _NUMBERS.fullmatch(inside)
    if numbers is None:
        return []
    first, last, step = int(numbers[1]), int(numbers[2]), int(numbers[3] or 1) or 1
    if abs(first - last) > _MOST * step:
        raise ConfigError(f"found {{{inside}}}, expected at most {_MOST} words; write fewer.")
    padded = any(re.match(r"-?0\d", end) for end in numbers.groups()[:2])
    width = max(len(numbers[1]), len(numbers[2])) if padded else 0
    down = first > last
    return [f"{one:0{width}}" for one in range(first, last + (-1 if down else 1), -step if down else step)]


def _part(value: str | None, rest: str) -> str | None:
    if value is not None and rest in ("%/*", "##*/"):
        folder, slash, name = value.rpartition("/")
        return name if rest == "##*/" else folder if slash else value
    return None


def _path_of(program: str, path: Path) -> str:
    if program == "basename":
        return path.name
    return str(path.parent if program == "dirname" else path.resolve())


def _sequence(match: re.Match[str]) -> str | None:
    first, step, last = int(match[1]), int(match[2] or 1), int(match[3])
    if abs(first - last) > _MOST * abs(step):
        return None
    return " ".join(map(str, range(first, last + (1 if step > 0 else -1), step)))
