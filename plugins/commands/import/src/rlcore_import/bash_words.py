"""From the text of a bash script to its commands: words as they stand there, with their quotes.

This knows where a word, a command and an array end, as bash does. What a word means is `bash_script`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from rlcore import ConfigError

_OPERATOR = re.compile(r";;&?|;&|&&|&>>?|&|\|\||\|&|\||;|\n|\(|\)|<<<|<<-?|[<>]&|>>|>\||<>|<|>")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_FUNCTION = re.compile(r"([A-Za-z_][\w-]*)[ \t]*\([ \t]*\)\s*")
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
    """`where`: its file and line. `after`: the operator before it. `text`: the lines after `<<END`.

    `literal`: bash leaves the variables in `text` alone. `target`: the file that `>` names.
    `shells`: the brackets that it stands in, by number; each is a shell of its own.
    """

    where: str
    after: str
    words: list[str | Array] = field(default_factory=list)
    target: str = ""
    text: str | None = None
    literal: bool = False
    shells: tuple[int, ...] = ()


def read(text: str, name: str) -> list[Command]:
    """The commands of a script in their order; `name`: what errors call it. ConfigError: an open quote."""
    return _Reader(text.replace("\r\n", "\n"), name).commands()


def after_element(text: str, at: int, quoted: bool = False) -> int:
    """Where what begins at `at` ends: a character, a quoted text, a variable or a command.

    `quoted`: within double quotes. ValueError: it has no end.
    """
    if text[at] == "\\":
        return min(at + 2, len(text))
    if text[at] == "'" and not quoted:
        return text.index("'", at + 1) + 1
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


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self.text, self.name, self.at = text, name, 0
        self.command = Command(where=self._where(0), after="\n")
        self.found: list[Command] = []
        self.shells: tuple[int, ...] = ()
        self.opened = 0
        self.waiting: list[tuple[Command, str, bool]] = []
        """Commands whose `<<END` is read at the end of the line: END, and whether tabs before it count."""

    def commands(self) -> list[Command]:
        while self._skip():
            if (operator := _OPERATOR.match(self.text, self.at)) and not self._substitutes():
                self.at = operator.end()
                self._operator(operator[0])
            else:
                self._add()
        self._end("\n")
        return self.found

    def _where(self, at: int) -> str:
        return f"{self.name}, line {self.text.count(chr(10), 0, at) + 1}"

    def _skip(self) -> bool:
        """To the next word or operator, past blanks and comments; False: there is none."""
        skipped = re.compile(r"(?:[ \t]|\\\n)*(?:#[^\n]*)?").match(self.text, self.at)
        assert skipped
        self.at = skipped.end()
        return self.at < len(self.text)

    def _substitutes(self) -> bool:
        return self.text.startswith(("<(", ">("), self.at)

    def _operator(self, operator: str) -> None:
        if operator == "(" and self.text.startswith("(", self.at):  # ((i += 1)), as `let "i += 1"`
            start = self.at + 1
            self.at = self._checked(lambda: _after(self.text, start, ")", quoted=False))
            self.command.words += ["let", self.text[start : self.at - 1]]
        elif operator.startswith(("<", ">", "&>")):
            self._redirect(operator)
        else:
            self._end(operator)
            if operator == "\n":
                self._texts()

    def _redirect(self, operator: str) -> None:
        self._skip()
        word = self._word()
        if operator in ("<<", "<<-"):
            end = re.sub(r"[\"'\\]", "", word)
            self.command.literal = end != word
            self.waiting.append((self.command, end, operator == "<<-"))
        elif operator in (">", ">|"):
            self.command.target = word

    def _texts(self) -> None:
        for command, end, tabs in self.waiting:
            lines = []
            while self.at < len(self.text):
                line, _, _ = self.text[self.at :].partition("\n")
                self.at = min(self.at + len(line) + 1, len(self.text))
                line = line.lstrip("\t") if tabs else line
                if line.strip() == end:
                    break
                lines.append(line)
            command.text = "\n".join(lines)
        self.waiting = []

    def _end(self, operator: str) -> None:
        if self.command.words or self.command.text is not None or self.command.target:
            self.found.append(self.command)
        if operator == "(":
            self.opened += 1
            self.shells = (*self.shells, self.opened)
        elif operator == ")":
            self.shells = self.shells[:-1]  # of `a)` in a case there is none
        self.command = Command(where=self._where(self.at), after=operator, shells=self.shells)

    def _add(self) -> None:
        if not self.command.words:
            self.command.where = self._where(self.at)
        if array := _ARRAY.match(self.text, self.at):
            self.at = array.end()
            words = self._checked(self._items)
            self.command.words.append(Array(array[1], bool(array[2]), words))
        elif (function := _FUNCTION.match(self.text, self.at)) and self.command.words in ([], ["function"]):
            self.at = function.end()
            self.command.words = ["function", function[1]]
        else:
            word = self._word()
            if not (word.isdigit() and self.text.startswith(("<", ">"), self.at)):  # 2>&1
                self.command.words.append(word)

    def _items(self) -> tuple[str, ...]:
        """The words of an array, to behind its bracket."""
        words: list[str] = []
        while self._skip():
            if self.text[self.at] == ")":
                self.at += 1
                return tuple(words)
            if self.text[self.at] == "\n":
                self.at += 1
            else:
                words.append(self._word(blanks=" \t\n)"))
        raise ValueError("no ) at the end")

    def _word(self, blanks: str = _NO_WORD) -> str:
        start = self.at
        if self._substitutes():
            self.at = self._checked(lambda: _after(self.text, start + 2, ")", quoted=False))
        while self.at < len(self.text) and self.text[self.at] not in blanks:
            self.at = self._checked(lambda: after_element(self.text, self.at))
        return self.text[start : self.at].replace("\\\n", "")

    def _checked(self, read: Callable[[], T]) -> T:
        where = self._where(self.at)
        try:
            return read()
        except ValueError as error:
            raise ConfigError(
                f"{where}: found a quote or bracket that stays open until the end of the file, expected its "
                "end; add it."
            ) from error
