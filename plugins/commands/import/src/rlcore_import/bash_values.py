"""What a word of a bash script stands for: its quotes, variables, defaults, sums and a few commands.

What has no known value is kept as it stands, between marks, until the end: a later line may set it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlcore_import.bash_words import after_element

_SPLIT, _EMPTY, _HELD, _HELD_QUOTED, _END = "\0\1\2\3\4"
"""Marks: words end here, "", an unknown value outside of quotes, one within, and where it ends."""

_MARKED = re.compile(f"([{_HELD}{_HELD_QUOTED}])([^{_END}]*){_END}")
_BLANKS = re.compile(rf"({_MARKED.pattern})|\s+")
_NAMED = re.compile(r"([A-Za-z_]\w*|\d+)(?:\[(\w+|@|\*)\])?(.*)", re.DOTALL)
_OR = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
_NUMBERS = re.compile(r"\{(\d+)\.\.(\d+)\}")
_SEQUENCE = re.compile(r"seq (-?\d+) (?:(-?\d+) )?(-?\d+)")
_FOLDER = re.compile(r"cd\s+(?:--\s+|-P\s+)*(.+?)(?:\s*&?>\s*\S+)?(?:\s*2>&1)?\s*(?:&&|;)\s*pwd(?:\s+-P)?")
_PATH_OF = re.compile(r"(dirname|basename|realpath|readlink)\s+(?:--?\w*\s+)*(.+)", re.DOTALL)
LARGEST_POWER = 64


@dataclass
class Values:
    """The variables and arrays of a script so far. `fixed`: variables that the script cannot set.

    `script`: the path that `$0` and `$BASH_SOURCE` stand for. `own`: the arguments of the function that runs.
    """

    variables: dict[str, str]
    fixed: frozenset[str]
    arrays: dict[str, list[str]] = field(default_factory=dict)
    script: Path = Path()
    own: list[str] | None = None

    def fields(self, word: str, early: bool = False) -> list[str]:
        """The words that bash makes of one. `early`: a default waits, a later line may set its variable."""
        if numbers := _NUMBERS.fullmatch(word):
            return [str(one) for one in range(int(numbers[1]), int(numbers[2]) + 1)]
        found = self._expand(word, quoted=False, early=early)
        return [one.replace(_EMPTY, "") for one in found.split(_SPLIT) if one]

    def final(self, words: list[str]) -> list[str]:
        """Words of `fields`, with what was unknown then; what still is stands there as in the script."""
        late = [
            _MARKED.sub(lambda held: self._held(held[2], held[1] == _HELD_QUOTED), word) for word in words
        ]
        return [plain(one) for word in late for one in word.split(_SPLIT) if one or not word]

    def text(self, word: str, quoted: bool = False) -> str:
        """Of an assignment: all in one."""
        return self._expand(word, quoted=quoted, early=False).replace(_SPLIT, " ").replace(_EMPTY, "")

    def assign(self, name: str, value: str) -> None:
        """An unknown value leaves the variable unknown, but for a text of flags: some of them are known."""
        if name in self.fixed:
            return
        self.arrays.pop(name, None)
        if (_MARKED.search(value) or "$" in value or "`" in value) and "--" not in value:
            self.variables.pop(name, None)
        else:
            self.variables[name] = value

    def copy(self) -> Values:
        """For a shell of its own."""
        arrays = {name: [*items] for name, items in self.arrays.items()}
        return replace(self, variables=dict(self.variables), arrays=arrays)

    def all_fields(self, words: Sequence[str]) -> list[str]:
        return [one for word in words for one in self.fields(word)]

    def extend(self, name: str, words: Sequence[str], more: bool) -> None:
        """An array anew, or by `more` behind what it holds."""
        held: list[str] = []
        if more:
            held = self.arrays.get(name) or (self.fields(f"${name}") if name in self.variables else [])
        self.arrays[name] = [*held, *(one for word in words for one in self.fields(word, early=True))]
        self.variables.pop(name, None)

    def replace_item(self, name: str, index: str, word: str) -> bool:
        """`A[1]=b`; False: the array has no such item."""
        items = self.arrays.get(name, [])
        if not (index.isdigit() and int(index) < len(items)):
            return False
        items[int(index)] = self.text(word)
        return True

    def forget(self, name: str) -> None:
        """What is set as the script runs."""
        self.arrays.pop(name, None)
        if name not in self.fixed:
            self.variables.pop(name, None)

    def _held(self, element: str, quoted: bool) -> str:
        value = self._value(element, quoted, early=False)
        return element if value is None else value or (_EMPTY if quoted else "")

    def _expand(self, word: str, quoted: bool, early: bool) -> str:
        found, at = "", 0
        while at < len(word):
            try:
                end = after_element(word, at, quoted)
            except ValueError:  # in a file that the script writes: an open bracket is a text there
                end = at + 1
            found += self._element(word[at:end], quoted, early)
            at = end
        return found

    def _element(self, element: str, quoted: bool, early: bool) -> str:
        first = element[0]
        if first == "'" and not quoted:
            return element[1:-1] or _EMPTY
        if first == '"' and not quoted:
            inner = element[1:-1]
            no_word = inner in ("$@", "$*", "${@}", "${*}") or inner.endswith(("[@]}", "[*]}"))
            return self._expand(inner, quoted=True, early=early) or ("" if no_word else _EMPTY)
        if first == "\\":
            return element if quoted and element[1:] not in ("$", "`", '"', "\\") else element[1:]
        if first not in "$`" or element == "$":
            return element
        value = self._value(element, quoted, early)
        if value is not None:
            return value
        element = f"$({element[1:-1]})" if first == "`" else element  # a `$` tells that it is not known
        return f"{_HELD_QUOTED if quoted else _HELD}{element}{_END}"

    def _value(self, element: str, quoted: bool, early: bool) -> str | None:
        """Of what begins with `$` or a backquote; None: it is not known."""
        if element.startswith("$(("):
            return self._sum(element[3:-2])
        if element.startswith(("$(", "`")):
            value = self._command(element[2:-1] if element[0] == "$" else element[1:-1])
        elif element.startswith("${"):
            return self._braces(element[2:-1], quoted, early)
        elif element[1:] in ("@", "*"):
            return _SPLIT.join(self.own or [])
        else:
            value = self._variable(element[1:])
        return value if value is None or quoted else _splittable(value)

    def _braces(self, inside: str, quoted: bool, early: bool) -> str | None:
        """Of what `${…}` holds."""
        if inside in ("@", "*"):
            return _SPLIT.join(self.own or [])
        if inside.startswith("#"):
            name = inside[1:].removesuffix("[@]").removesuffix("[*]")
            return str(len(self.arrays[name])) if name in self.arrays and name != inside[1:] else None
        named = _NAMED.fullmatch(inside)
        if named is None:
            return None
        name, index, rest = named.groups()
        if index in ("@", "*"):
            return self._array(name, rest)
        value = self._variable(name, index)
        if rest:
            value = self._changed(name, value, rest, early)
        return value if value is None or quoted else _splittable(value)

    def _array(self, name: str, rest: str) -> str | None:
        """Without quotes too an item stays a word, where bash splits it: slime would refuse that."""
        if rest and not re.match(r":?[-+]", rest):
            return None
        items = self.arrays.get(name, [])
        return _SPLIT.join(item or _EMPTY for item in items)

    def _variable(self, name: str, index: str | None = None) -> str | None:
        if name == "0" or (name == "BASH_SOURCE" and index in (None, "0")):
            return str(self.script)
        if name.isdigit():
            own = self.own or []
            return own[int(name) - 1] if int(name) <= len(own) else None
        if name in self.variables and index is None:
            return self.variables[name]
        items, number = self.arrays.get(name), int(index) if index and index.isdigit() else 0
        return items[number] if items and number < len(items) and (not index or index.isdigit()) else None

    def _changed(self, name: str, value: str | None, rest: str, early: bool) -> str | None:
        """`${A:-b}`, `${A:=b}`, `${A:+b}`, `${A:?b}`, `${A%/*}` and `${A##*/}`."""
        either = _OR.fullmatch(rest)
        if either is None:
            return _part(value, rest)
        empty, kind, other = either.groups()
        known = value is not None and not (empty and not value)
        if kind == "+":
            return self._known(other) if known else ""
        if known or kind == "?" or (early and kind == "-" and not name.isdigit()):
            return value if known else None
        found = self._known(other)
        if kind == "=" and found is not None:
            self.assign(name, found)
        return found

    def _known(self, word: str) -> str | None:
        found = self.text(word)
        return None if _MARKED.search(found) else found

    def _command(self, line: str) -> str | None:
        """Of the commands that say where the script lies, and of `seq`."""
        line = line.strip()
        if line == "pwd":
            return None
        if folder := _FOLDER.fullmatch(line):
            known = self._known(folder[1].strip())
            return None if known is None else str(Path(known).resolve())
        if found := _PATH_OF.fullmatch(line):
            known = self._known(found[2].strip())
            return None if known is None else _path_of(found[1], Path(known))
        sequence = _SEQUENCE.fullmatch(self.text(line))
        return _sequence(sequence) if sequence else None

    def _sum(self, line: str) -> str | None:
        plain = self.text(line, quoted=True)
        names = re.sub(r"[A-Za-z_]\w*", lambda name: self._variable(name[0]) or name[0], plain)
        value = _number(names)
        return None if value is None else str(value)


def plain(text: str) -> str:
    """`text` without the marks of what is unknown."""
    return _MARKED.sub(lambda held: held[2], text).replace(_EMPTY, "")


def _splittable(value: str) -> str:
    """Outside of quotes bash makes words of a value."""
    return _BLANKS.sub(lambda match: match[1] or _SPLIT, value)


def _part(value: str | None, rest: str) -> str | None:
    if value is not None and rest in ("%/*", "##*/"):
        folder, slash, name = value.rpartition("/")
        return name if rest == "##*/" else folder if slash else value
    return None


def _path_of(program: str, path: Path) -> str:
    if program == "basename":
        return path.name
    return str(path.parent if program == "dirname" else path.resolve())


def _sequence(match: re.Match[str]) -> str:
    first, step, last = int(match[1]), int(match[2] or 1), int(match[3])
    return " ".join(map(str, range(first, last + (1 if step > 0 else -1), step))) if step else ""


def _number(text: str) -> int | None:
    """The value of a sum or product of integers; None: it is none."""
    try:
        return _of_node(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _of_node(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_of_node(node.operand)
    if isinstance(node, ast.BinOp):
        return _of_two(node.op, _of_node(node.left), _of_node(node.right))
    raise ValueError(ast.dump(node))


def _of_two(operator: ast.operator, left: int, right: int) -> int:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return int(left / right)  # bash rounds towards zero
        case ast.Mod() if left >= 0 and right > 0:
            return left % right
        case ast.Pow() if 0 <= right <= LARGEST_POWER:
            return int(left**right)
    raise ValueError(ast.dump(operator))
