"""What a word of a bash script stands for: its quotes, variables, defaults, sums and a few commands.

What has no known value is kept as it stands, between marks, and so it reaches the table of flags.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlcore import ConfigError
from rlcore_import.bash.sums import SETS, of_sum
from rlcore_import.bash.variables import ARGUMENTS, Variables
from rlcore_import.bash.words import (
    EMPTY,
    END,
    HELD,
    HELD_QUOTED,
    MARKED,
    MOST,
    SPLIT,
    after_element,
    braced,
    counted,
)

_BLANKS = re.compile(rf"({MARKED.pattern})|\s+")
_NAMED = re.compile(r"([A-Za-z_]\w*|\d+)(?:\[(\w+|@|\*)\])?(.*)", re.DOTALL)
_OR = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
_SEQUENCE = re.compile(r"seq (-?\d+) (?:(-?\d+) )?(-?\d+)")
_FOLDER = re.compile(r"cd\s+(?:--\s+|-P\s+)*(.+?)(?:\s*&?>\s*\S+)?(?:\s*2>&1)?\s*(?:&&|;)\s*pwd(?:\s+-P)?")
_PATH_OF = re.compile(r"(dirname|basename|realpath|readlink)\s+(?:--?\w*\s+)*(.+)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


@dataclass
class Values(Variables):
    """The variables, and what words stand for with them."""

    _whole: bool = False
    """Whether a text is made, which blanks do not split."""

    def fields(self, word: str) -> list[str]:
        """The words that bash makes of one."""
        found = SPLIT.join(self._expand(one, quoted=False) for one in braced(word))
        return [one.replace(EMPTY, "") for one in found.split(SPLIT) if one]

    def text(self, word: str, quoted: bool = False) -> str:
        """The text of an assignment, which is one word."""
        outer, self._whole = self._whole, True
        found = self._expand(word, quoted=quoted).replace(SPLIT, " ").replace(EMPTY, "")
        self._whole = outer
        return found

    def known(self, word: str) -> str | None:
        """The same; None: part of it is not known."""
        found = self.text(word)
        return None if MARKED.search(found) else found

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
        if len(items) > MOST:
            raise ConfigError(f"{name}: found {len(items)} words, expected at most {MOST}; write fewer.")
        self._drop(name)
        self.arrays[name] = items

    def replace_item(self, name: str, index: str, word: str) -> bool:
        """`A[1]=b`; False: the array has no such item."""
        items = self.arrays.get(name, [])
        if not (index.isdigit() and int(index) < len(items) and counted(items)):
            return False
        self.changed.append(name)
        items[int(index)] = self.text(word)
        return True

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
            return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), element[2:-1]) or EMPTY
        if first == "'" and not quoted:
            return element[1:-1] or EMPTY
        if element.startswith(('"', '$"')) and not quoted:
            inner = element[element.index('"') + 1 : -1]
            no_word = inner in ("$@", "${@}") or inner.endswith("[@]}")
            return self._expand(inner, quoted=True) or ("" if no_word else EMPTY)
        if first == "\\":
            return element if quoted and element[1:] not in ("$", "`", '"', "\\") else element[1:]
        if first not in "$`" or element == "$":
            return element
        value = self._value(element, quoted)
        if value is not None:
            return value
        element = f"$({element[1:-1]})" if first == "`" else element  # a `$` tells that it is not known
        return f"{HELD_QUOTED if quoted else HELD}{element}{END}"

    def _value(self, element: str, quoted: bool) -> str | None:
        """The value of what begins with `$` or a backquote; None: it is not known."""
        if element.startswith("$(("):
            return self.sum(element[3:-2])
        if element.startswith(("$(", "`")):
            return self._split(self._command(element[2:-1] if element[0] == "$" else element[1:-1]), quoted)
        return self._parameter(element[2:-1] if element.startswith("${") else element[1:], quoted)

    def _parameter(self, inside: str, quoted: bool) -> str | None:
        """The value of what `${…}` holds."""
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
            if either and not counted(items):
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
            return None if MARKED.search(found) else found
        return None if re.search(r"[\"'\\]", word) else self._split(self.known(word), quoted)

    def _list(self, items: list[str] | None, quoted: bool, joined: bool) -> str | None:
        if items is None or (joined and quoted and self._splits_otherwise()):
            return None
        if quoted:
            return " ".join(items) if joined else SPLIT.join(item or EMPTY for item in items)
        parts = [self._split(item, quoted) for item in items]
        return None if None in parts else SPLIT.join(part for part in parts if part)

    def _split(self, value: str | None, quoted: bool) -> str | None:
        """Outside of quotes bash makes words of a value."""
        if value is None or quoted or self._whole:
            return value
        if self._splits_otherwise():
            return None
        return _BLANKS.sub(lambda match: match[1] or SPLIT, value)

    def _splits_otherwise(self) -> bool:
        """Whether the script has set `IFS`."""
        return "IFS" in self.unknown or "IFS" in self.variables

    def _length(self, inside: str) -> str | None:
        name = inside.removesuffix("[@]").removesuffix("[*]")
        if name in self.unknown:
            return None
        if name != inside and name not in self.variables:
            items = self.arrays.get(name, [])
            return str(len(items)) if counted(items) else None
        value = self._variable(name)
        return None if value is None else str(len(value) if name == inside else 1)

    def _counts(self, items: list[str]) -> bool:
        return ARGUMENTS not in self.unknown and counted(items)

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
        return items[-1] if len(items) == number + 1 > 0 and counted(items[:-1]) else None

    def _command(self, line: str) -> str | None:
        """The output of the commands that say where the script lies, and of `seq`."""
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
        """The value of `$((…))`."""
        plain = self.text(line, quoted=True)
        for found in SETS.finditer(plain):
            self.forget(found[1] or found[2], "a sum sets")
        names = re.sub(r"(?<!\w)[A-Za-z_]\w*", self._of_name, plain)
        value = of_sum(names)
        return None if value is None else str(value)

    def _of_name(self, name: re.Match[str]) -> str:
        value = self._variable(name[0])
        return f"({value})" if value else name[0]


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
    if abs(first - last) > MOST * abs(step):
        return None
    return " ".join(map(str, range(first, last + (1 if step > 0 else -1), step)))
