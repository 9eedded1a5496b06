"""From the text of a bash script to its commands, and to what holds them: `if`, `case`, loops, functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from rlcore import ConfigError
from rlcore_import.bash.words import Command, Reader

_FUNCTION = re.compile(r"([A-Za-z_][\w.:-]*)[ \t]*\([ \t]*\)\s*")
_NAME = re.compile(r"([A-Za-z_][\w.:-]*)[ \t]*(?:\([ \t]*\))?\s*")
_CLOSES = {"then", "elif", "else", "fi", "do", "done", "esac", "}", ")", ";;", ";&", ";;&"}


@dataclass
class Pipeline:
    """Commands between `|`. `text`: as it stands in the script. `negated`: by a `!` before it."""

    where: str
    text: str
    negated: bool
    parts: list[Node]


@dataclass
class Chain:
    """Pipelines, each with the `&&` or `||` before it. `background`: a `&` is behind them."""

    steps: list[tuple[str, Pipeline]]
    background: bool


@dataclass
class Group:
    """`{ …; }`, or with `shell` `(…)`."""

    body: list[Chain]
    shell: bool


@dataclass
class If:
    """`arms`: a condition and its commands each. `other`: those of `else`."""

    arms: list[tuple[list[Chain], list[Chain]]]
    other: list[Chain]


@dataclass
class Case:
    """`arms`: patterns, commands, and the operator behind them."""

    word: str
    arms: list[tuple[list[str], list[Chain], str]] = field(default_factory=list)


@dataclass
class Loop:
    """`kind`: "while", "until", "for", "select", or "((" of `for ((a; b; c))`, with a, b and c as `words`."""

    where: str
    kind: str
    body: list[Chain]
    condition: list[Chain] = field(default_factory=list)
    name: str = ""
    words: list[str] = field(default_factory=list)


@dataclass
class Function:
    """The definition of one."""

    name: str
    body: Node


Node = Command | Group | If | Case | Loop | Function


def parse(text: str, name: str) -> list[Chain]:
    """A script; `name`: what errors call it. ConfigError: it is not written as bash expects."""
    parser = _Parser(text, name)
    body = parser.body()
    if (token := parser.peek()) != "":
        raise parser.unexpected(token, "a command")
    return body


def commands(body: list[Chain], function: str = "") -> Iterator[tuple[str, Command]]:
    """All of them, each with the function that it stands in."""
    for chain in body:
        for _, pipeline in chain.steps:
            for part in pipeline.parts:
                yield from _within(part, function)


def _within(node: Node, function: str) -> Iterator[tuple[str, Command]]:
    match node:
        case Command():
            yield function, node
        case Function():
            yield from _within(node.body, node.name)
        case If():
            for condition, body in [*node.arms, ([], node.other)]:
                yield from commands([*condition, *body], function)
        case Case():
            for _, body, _ in node.arms:
                yield from commands(body, function)
        case Loop():
            yield from commands([*node.condition, *node.body], function)
        case Group():
            yield from commands(node.body, function)


class _Parser(Reader):
    def body(self) -> list[Chain]:
        """Commands until a word or operator that closes what is open."""
        chains: list[Chain] = []
        while True:
            self._blank()
            if (token := self.peek()) == "" or token in _CLOSES:
                return chains
            chains.append(self._chain())

    def unexpected(self, found: str, expected: str) -> ConfigError:
        """What to raise."""
        shown = "the end of the file" if not found else "the end of the line" if found == "\n" else found
        return ConfigError(f"{self.where()}: found {shown}, expected {expected}; correct the script.")

    def _blank(self) -> None:
        while self.peek() in ("\n", ";"):
            self.take()

    def _expect(self, *words: str) -> str:
        self._blank()
        if (token := self.peek()) not in words:
            raise self.unexpected(token, " or ".join(words))
        return self.take()

    def _chain(self) -> Chain:
        steps = [("", self._pipeline())]
        while (operator := self.peek()) in ("&&", "||"):
            self.take()
            steps.append((operator, self._pipeline()))
        if operator in (";", "&"):
            self.take()
        elif operator not in ("", "\n") and operator not in _CLOSES:
            raise self.unexpected(operator, "the end of the command")
        return Chain(steps, background=operator == "&")

    def _pipeline(self) -> Pipeline:
        self._blank()
        where, start, negated = self.where(), self.at, False
        while (word := self.peek()) in ("!", "time"):
            negated ^= word == "!"
            self.take()
        parts = [self._node()]
        while self.peek() in ("|", "|&"):
            self.take()
            self._blank()
            parts.append(self._node())
        return Pipeline(where, self.text[start : self.at].strip(), negated, parts)

    def _node(self) -> Node:
        token = self.peek()
        node = self._compound(token)
        if node is None:
            return self._command()
        while self.peek() and (self.peek()[0] in "<>" or self.peek().startswith("&>") or self._descriptor()):
            self._redirect_all()
        return node

    def _descriptor(self) -> bool:
        return re.compile(r"\d+[<>]").match(self.text, self.at) is not None

    def _redirect_all(self) -> None:
        """Reads the redirections of a whole `if`, loop or group."""
        if self._descriptor():
            self.word()
        self.redirect(Command(self.where()))

    def _compound(self, token: str) -> Node | None:
        if token == "(" and not self.text.startswith("((", self.at):
            return self._group(")", shell=True)
        if token == "{":
            return self._group("}", shell=False)
        if token == "if":
            return self._if()
        if token == "case":
            return self._case()
        if token in ("while", "until"):
            return self._while()
        if token in ("for", "select"):
            return self._for()
        if token == "function":
            self.take()
            self.peek()
            return self._function(_NAME.match(self.text, self.at))
        function = _FUNCTION.match(self.text, self.at)
        return self._function(function) if function else None

    def _group(self, end: str, shell: bool) -> Group:
        self.take()
        body = self.body()
        self._expect(end)
        return Group(body, shell)

    def _function(self, match: re.Match[str] | None) -> Function:
        if match is None:
            raise self.unexpected(self.peek(), "the name of a function")
        self.at = match.end()
        return Function(match[1], self._node())

    def _if(self) -> If:
        arms = []
        word = self.take()
        while word in ("if", "elif"):
            condition = self.body()
            self._expect("then")
            arms.append((condition, self.body()))
            word = self._expect("elif", "else", "fi")
        other = self.body() if word == "else" else []
        if word == "else":
            self._expect("fi")
        return If(arms, other)

    def _case(self) -> Case:
        self.take()
        self.peek()
        case = Case(self.word())
        self._expect("in")
        self._blank()
        while self.peek() != "esac":
            if self.peek() == "(":
                self.take()
            patterns = [self._pattern()]
            while self._expect("|", ")") == "|":
                patterns.append(self._pattern())
            body = self.body()
            end = self._expect(";;", ";&", ";;&", "esac")
            case.arms.append((patterns, body, end))
            if end == "esac":
                return case
            self._blank()
        self.take()
        return case

    def _pattern(self) -> str:
        if self.peek() == "":
            raise self.unexpected("", "esac")
        return self.word()

    def _while(self) -> Loop:
        where, kind = self.where(), self.take()
        condition = self.body()
        return Loop(where, kind, self._do(), condition=condition)

    def _do(self) -> list[Chain]:
        opened = self._expect("do", "{")
        body = self.body()
        self._expect("done" if opened == "do" else "}")
        return body

    def _for(self) -> Loop:
        where, kind = self.where(), self.take()
        if self.peek() == "(":
            self.at += 2
            sums = self.bracket().split(";")
            self._expect(")")
            return Loop(where, "((", self._do(), words=[*sums, "", ""][:3])
        name = self.word()
        words = ['"$@"']
        if self._peek_line() == "in":
            self.take()
            words = []
            while self.peek() not in (";", "\n", ""):
                words.append(self.word())
        return Loop(where, kind, self._do(), name=name, words=words)

    def _peek_line(self) -> str:
        while self.peek() == "\n":
            self.take()
        return self.peek()

    def _command(self) -> Command:
        command, start = Command(self.where()), self.at
        if self.peek() == "(":  # ((i += 1)), as `let "i += 1"`
            self.at += 2
            command.words = ["let", self.bracket()]
            self._expect(")")
        elif self.peek() == "[[":
            return self._tested(command)
        while token := self.peek():
            if (token[0] in "<>" and token != "<(") or token.startswith("&>"):
                self.redirect(command)
            elif token in ("(", ")") or token[0] in ";&|\n":
                break
            else:
                self.add(command)
        if self.at == start:
            raise self.unexpected(token, "a command")
        return command

    def _tested(self, command: Command) -> Command:
        """`[[ … ]]`, where `&&`, `(` and `<` are words."""
        last = ""
        while last != "]]":
            if (token := self.peek()) == "":
                raise self.unexpected("", "]]")
            if last == "=~":
                last = self.word(blanks=" \t\n")
            elif token[0] in "&|()<>\n":
                last = self.take()
            else:
                last = self.word()
            if last != "\n":
                command.words.append(last)
        return command
