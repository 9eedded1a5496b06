"""The words of a bash script as they stand there, with their quotes, and the operators between them.

This knows where a word, an array and a redirection end, as bash does. `tree` makes commands of them.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rlcore import ConfigError

SPLIT, EMPTY, HELD, HELD_QUOTED, END = "\0\1\2\3\4"
"""Marks: words end here, "", an unknown value outside of quotes, one within, and where it ends."""

MARKED = re.compile(f"([{HELD}{HELD_QUOTED}])([^{END}]*){END}")


def plain(text: str) -> str:
    """`text` without the marks of what is unknown."""
    return MARKED.sub(lambda held: held[2], text).replace(EMPTY, "")


def counted(items: Sequence[str]) -> bool:
    """Whether each is one word: an unknown value without quotes may be none, or two."""
    return not any(HELD in item or (HELD_QUOTED in item and "[@]" in item) for item in items)


def is_known(text: str) -> bool:
    """Whether `text` has no such marks."""
    return MARKED.search(text) is None


_OPERATOR = re.compile(r";;&?|;&|&&|&>>?|&|\|\||\|&|\||;|\n|\(|\)|<<<|<<-?|[<>]&|>>|>\||<>|<|>")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_DOLLAR = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
T = TypeVar("T")
_NO_WORD = " \t\n;&|<>()"


@dataclass(frozen=True)
class Array:
    """`NAME=(…)`, or with `more` `NAME+=(…)`."""

    name: str
    more: bool
    words: tuple[str, ...]


@dataclass
class Command:
    """A program with its words. `where`: its file and line. `text`: the lines after `<<END`.

    `literal`: bash leaves the variables in `text` alone. `target`: the file that `>` names, or `>>` (`more`).
    """

    where: str
    words: list[str | Array] = field(default_factory=list)
    target: str = ""
    more: bool = False
    text: str | None = None
    literal: bool = False


def after_element(text: str, at: int, quoted: bool = False) -> int:
    """Where what begins at `at` ends: a character, a quoted text, a variable or a command.

    `quoted`: within double quotes. ValueError: it has no end.
    """
    if text[at] == "\\":
        return min(at + 2, len(text))
    if text[at] == "'" and not quoted:
        return text.index("'", at + 1) + 1
    if text.startswith("$'", at) and not quoted:
        return _after(text, at + 2, "'", quoted=True)
    if text.startswith('$"', at) and not quoted:
        return _after(text, at + 2, '"', quoted=True)
    if text[at] == '"' and not quoted:
        return _after(text, at + 1, '"', quoted=True)
    if text[at] == "`":
        return _after(text, at + 1, "`", quoted=True)
    if text.startswith("${", at):
        return _after(text, at + 2, "}", quoted=quoted)
    if text.startswith("$(", at):
        return _after(text, at + 2, ")", quoted=False)
    dollar = _DOLLAR.match(text, at)
    return dollar.end() if dollar else at + 1


def _after(text: str, at: int, end: str, quoted: bool) -> int:
    """Behind the `end` that closes what is open at `at`."""
    while at < len(text):
        if text[at] == end:
            return at + 1
        if end == ")" and text[at] == "(":
            at = _after(text, at + 1, ")", quoted=False)
        elif end == "}" and quoted and text[at] == '"':  # a quote within "${A:-"b"}"
            at = after_element(text, at)
        else:
            at = after_element(text, at, quoted)
    raise ValueError(f"no {end} at the end")


class Reader:
    """A place in the text of a script; each method reads on from there. ConfigError: an open quote."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name, self.at = text.replace("\r\n", "\n"), name, 0
        self._waiting: list[tuple[Command, str, bool]] = []
        """Commands whose `<<END` is read at the end of the line: END, and whether tabs before it count."""

    def where(self) -> str:
        """The file and line."""
        return f"{self.name}, line {self.text.count(chr(10), 0, self.at) + 1}"

    def peek(self) -> str:
        """The operator or plain word that comes next; "" at the end."""
        blank = re.compile(r"(?:[ \t]|\\\n)*(?:#[^\n]*)?").match(self.text, self.at)
        assert blank
        self.at = blank.end()
        if not self._substitutes() and (operator := _OPERATOR.match(self.text, self.at)):
            return operator[0]
        word = re.compile(rf"[^{re.escape(_NO_WORD)}]*").match(self.text, self.at)
        return word[0] or "<(" if word and self.at < len(self.text) else ""

    def take(self) -> str:
        """What `peek` sees; the texts of `<<END` behind the end of a line."""
        taken = self.peek()
        self.at += len(taken)
        if taken == "\n":
            self._texts()
        return taken

    def word(self, blanks: str = _NO_WORD) -> str:
        """To the next blank or operator outside of quotes."""
        start = self.at
        if self._substitutes():
            self.at = self.checked(lambda: _after(self.text, start + 2, ")", quoted=False))
        while self.at < len(self.text) and self.text[self.at] not in blanks:
            self.at = self.checked(lambda: after_element(self.text, self.at))
        return self.text[start : self.at].replace("\\\n", "")

    def bracket(self) -> str:
        """From behind an open bracket: what it holds."""
        start = self.at
        self.at = self.checked(lambda: _after(self.text, start, ")", quoted=False))
        return self.text[start : self.at - 1]

    def redirect(self, command: Command) -> None:
        """`>x`, `<x` or `<<END`."""
        operator = self.take()
        self.peek()
        word = self.word()
        if operator in ("<<", "<<-"):
            end = re.sub(r"[\"'\\]", "", word)
            command.literal = end != word
            self._waiting.append((command, end, operator == "<<-"))
        elif operator in (">", ">|", ">>"):
            command.target, command.more = word, operator == ">>"

    def add(self, command: Command) -> None:
        """The next word of a command."""
        if array := _ARRAY.match(self.text, self.at):
            self.at = array.end()
            words = self.checked(self._items)
            command.words.append(Array(array[1], bool(array[2]), words))
            return
        word = self.word()
        if not (word.isdigit() and self.text.startswith(("<", ">"), self.at)):  # 2>&1
            command.words.append(word)

    def checked(self, read: Callable[[], T]) -> T:
        """ConfigError for a ValueError: something has no end."""
        where = self.where()
        try:
            return read()
        except ValueError as error:
            raise ConfigError(
                f"{where}: found a quote or bracket that stays open until the end of the file, expected its "
                "end; add it."
            ) from error

    def _substitutes(self) -> bool:
        return self.text.startswith(("<(", ">("), self.at)

    def _texts(self) -> None:
        for command, end, tabs in self._waiting:
            lines = []
            while self.at < len(self.text):
                line, _, _ = self.text[self.at :].partition("\n")
                self.at = min(self.at + len(line) + 1, len(self.text))
                line = line.lstrip("\t") if tabs else line
                if line.strip() == end:
                    break
                lines.append(line)
            command.text = "\n".join(lines)
        self._waiting = []

    def _items(self) -> tuple[str, ...]:
        """The words of an array, to behind its bracket."""
        words: list[str] = []
        while (token := self.peek()) != ")":
            if not token:
                raise ValueError("no ) at the end")
            if token == "\n":
                self.at += 1
            else:
                words.append(self.word(blanks=" \t\n)"))
        self.at += 1
        return tuple(words)


_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
MOST = 10_000
"""Words of a list that are read."""


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
    """The alternatives of the brace at `start`, and where it ends; None: it stands for itself."""
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
    if abs(first - last) > MOST * step:
        raise ConfigError(f"found {{{inside}}}, expected at most {MOST} words; write fewer.")
    padded = any(re.match(r"-?0\d", end) for end in numbers.groups()[:2])
    width = max(len(numbers[1]), len(numbers[2])) if padded else 0
    down = first > last
    return [f"{one:0{width}}" for one in range(first, last + (-1 if down else 1), -step if down else step)]
