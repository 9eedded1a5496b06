"""What a bash script hands the training program. It is read from the top to the bottom; nothing is executed.

Both branches of an `if` are read, as its condition is not known: of variables the last value holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlcore import ConfigError
from rlcore_import.bash_training import ENTRY, LOOKS_AT, STARTS, entry, flags_of, second_command, within_text
from rlcore_import.bash_values import Values, plain
from rlcore_import.bash_words import Array, Command, read

_KEYWORDS = {
    *("if", "then", "elif", "else", "fi", "while", "until", "do", "done", "esac", "{", "}", "!", "time"),
}
_DECLARE = {"declare", "typeset", "export", "local", "readonly"}
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_CHANGES = {"for", "select", "unset", "read", "mapfile", "readarray", "set", "shift", "let"}
_SET_BY_SUM = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)")
_ITEM = re.compile(r"([A-Za-z_]\w*)\[(.*?)\]?=(.*)", re.DOTALL)
_ARRAY_USED = re.compile(r"\$\{([A-Za-z_]\w*)\[")
_ENVIRONMENT = re.compile(
    r"(?:.*/)?(?:activate|conda\.sh|setvars\.sh|set_env\.sh|\.\w*rc|\.\w*profile)|/etc/.*"
)
"""Files that prepare the shell, and have no flags."""


@dataclass
class Script:
    """`command`: the words of the training command, from its program on; `started`: where it stands.

    `files`: what the script writes, by path. `_gone`: files that it reads and that are not there, each with
    its place. `_unread`: arrays that it fills as it runs, and where.
    """

    values: Values
    files: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    started: str = ""
    _functions: dict[str, list[Command]] = field(default_factory=dict)
    _running: list[str] = field(default_factory=list)
    _open: list[Path] = field(default_factory=list)
    _gone: list[str] = field(default_factory=list)
    _unread: dict[str, str] = field(default_factory=dict)
    _others: list[tuple[str, list[str]]] = field(default_factory=list)
    """Commands that take flags of arrays and do not name the training program."""

    _quoted: str = ""
    _branches: int = 0
    _loops: list[str] = field(default_factory=list)
    _before: str = ""
    """What the command before was: "train", "test", or other."""

    def read(self, path: Path) -> None:
        """A script, and those that it reads by `source`. ConfigError."""
        if path in self._open:  # it reads itself
            return
        try:
            text = path.read_text()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}.") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: found no text, expected a shell script.") from error
        outer, self.values.script = self.values.script, path
        self._open.append(path)
        self._run_all(read(text, str(path)))
        self._open.pop()
        self.values.script = outer

    def words(self) -> list[str]:
        """The program and its flags; of a script without a training command, those of its arrays."""
        if not self.started:
            self._refuse_hidden()
            self.command = self._of_others()
        return self.values.final(self.command)

    def _refuse_hidden(self) -> None:
        if self._quoted:
            raise ConfigError(within_text(self._quoted))
        for name, body in self._functions.items():
            for command in body:
                if any(isinstance(word, str) and ENTRY.fullmatch(word) for word in command.words):
                    raise ConfigError(
                        f"{command.where}: found the training command in the function {name}, which is not "
                        "called by its name, expected a call; write the command outside of the function."
                    )

    def _of_others(self) -> list[str]:
        if len(self._others) > 1:
            (first, _), (second, _) = self._others[:2]
            raise ConfigError(second_command(second, first))
        for _, words in self._others:
            return flags_of(words)
        arrays = [items for items in self.values.arrays.values() if flags_of(items[:1])]
        return [item for items in arrays for item in items]

    def _run_all(self, commands: list[Command], inside: int = 0) -> None:
        """`inside`: the brackets around all of them."""
        shells: dict[tuple[int, ...], Values] = {(): self.values}
        at = 0
        while at < len(commands):
            self._enter(commands[at].shells[inside:], shells)
            body = _body(commands[at:])
            if body:
                self._functions[str(commands[at].words[1])] = body
            else:
                self._run(commands[at])
            at += len(body) or 1
        self.values = shells[()]

    def _enter(self, shell: tuple[int, ...], shells: dict[tuple[int, ...], Values]) -> None:
        """What a shell of brackets sets holds within them alone."""
        if shell not in shells:
            self._enter(shell[:-1], shells)
            shells[shell] = self.values.copy()
        self.values = shells[shell]

    def _run(self, command: Command) -> None:
        count = _keywords(command.words)
        words = command.words[count:]
        self._nest(command.words[:count])
        tested = self._before == "test" and command.after in ("&&", "||")
        before, self._before = self._before, ""
        first = next((at for at, word in enumerate(words) if not _assigns(word)), len(words))
        called = [word for word in words[first:] if isinstance(word, str)]
        if called:  # what stands before it, `A=1 python3 …`, holds for the command alone
            self._start(command, called, before)
        if not called or called[0] in _DECLARE:
            for word in filter(_assigns, map(_unquoted, words)):
                self._assign(word, command.where, tested)

    def _nest(self, keywords: list[str | Array]) -> None:
        for word in keywords:
            self._branches += (word == "if") - (word == "fi")
            if word in ("while", "until"):
                self._loops.append(str(word))
            elif word == "done" and self._loops:
                self._loops.pop()

    def _assign(self, word: str | Array, where: str, tested: bool) -> None:
        values = self.values
        if "for" in self._loops and (name := _grows(word)):  # once for each round
            values.forget(name)
            self._unread[name] = where
            return
        if isinstance(word, Array):
            values.extend(word.name, word.words, more=word.more)
            return
        name, more, right = _parts(word)
        value = (values.text(f"${{{name}}}") if more else "") + values.text(right)
        if STARTS.search(value):
            self._quoted = where
        if not (tested and name in values.variables):  # `[ … ] && A=b` changes nothing that is set
            values.assign(name, value)

    def _start(self, command: Command, words: list[str], before: str) -> None:
        first, more = words[0], words[1:]
        if first in (".", "source") and more:
            self._source(command, more[0])
        elif first == "cat" and command.target and command.text is not None:
            self._write(command)
        elif first in self._functions:
            self._call(first, more)
        elif first in _CHANGES:
            self._change(command, first, more)
        elif first == ":":
            self.values.all_fields(more)  # `: ${A:=b}` sets A
        elif first not in _DECLARE and first not in ("case", "function"):
            self._other(command, words, before)

    def _change(self, command: Command, first: str, more: list[str]) -> None:
        """Of commands that set variables to what is not known here."""
        if first == "shift":
            count = int(more[0]) if more and more[0].isdigit() else 1
            self.values.own = self.values.own and self.values.own[count:]
            return
        if first == "set":
            if more[:1] == ["--"]:
                self.values.own = self.values.all_fields(more[1:])
            return
        if first == "let":
            more = _SET_BY_SUM.findall(" ".join(more))
            self._before = "test"
        if first in ("for", "select"):
            self._loops.append("for")
            more = more[:1]
        for name in more:
            if name.isidentifier():
                self.values.forget(name)
                if first in ("read", "mapfile", "readarray"):
                    self._unread[name] = command.where

    def _call(self, name: str, words: list[str]) -> None:
        """A function of the script, with its own arguments."""
        if name in self._running:
            return
        outer, own = self.values.own, self.values.all_fields(words)
        self._running.append(name)
        self.values.own = own
        body = self._functions[name]
        self._run_all(body, inside=len(body[0].shells))
        self.values.own = outer
        self._running.pop()

    def _write(self, command: Command) -> None:
        body = command.text or ""
        if STARTS.search(body):
            self._quoted = command.where
        path = as_name(plain(self.values.text(command.target)))
        self.files[path] = body if command.literal else plain(self.values.text(body, quoted=True))

    def _source(self, command: Command, word: str) -> None:
        named = plain(self.values.text(word))
        if _ENVIRONMENT.fullmatch(named):
            return
        script = next((path for path in _places(named, self.values.script) if path.is_file()), None)
        if script is not None:
            self.read(script)
            return
        self._gone.append(f"{named} ({command.where})")
        if not self._branches and command.after not in ("&&", "||"):
            raise ConfigError(
                f"{command.where}: found `source {named}`, expected a file that is there; put it there, or "
                "remove the line if no flag comes from it."
            )

    def _other(self, command: Command, words: list[str], before: str) -> None:
        """Any program: perhaps the one that trains."""
        if item := _ITEM.fullmatch(words[0]):  # A[0]=b
            if "for" in self._loops or not self.values.replace_item(*item.groups()):
                self.values.forget(item[1])
                self._unread[item[1]] = command.where
            return
        fields = self.values.final(self.values.all_fields(words))
        at = entry(fields)
        if self._is_text(fields, command):
            raise ConfigError(within_text(command.where))
        if at is not None:
            self._train(command.where, words, fields[at:])
        elif before == "train" and command.after == "\n" and words[0].startswith("--"):
            raise ConfigError(
                f"{command.where}: found {words[0]} as a command of its own, expected it in the training "
                "command; end each line before it with a backslash, and take comments out from between them."
            )
        elif before == "train" and all(_ARRAY_USED.match(word.strip('"')) for word in words):
            self._take(command.where, words, fields)  # as if the backslash before it were there
        elif fields[:1] and fields[0] not in LOOKS_AT:
            self._maybe_trains(command, words, fields)
        if fields[:1] and fields[0] in ("[", "[[", "test"):
            self._before = "test"

    def _is_text(self, fields: list[str], command: Command) -> bool:
        """Whether a shell is handed the training command as a text."""
        if not fields or fields[0] in LOOKS_AT:
            return False
        text = any(STARTS.search(word) for word in fields)
        if text or (command.text is not None and STARTS.search(command.text)):
            self._quoted = command.where
        runs = fields[0] in ("eval", "ssh") or any(re.fullmatch(r"-[a-z]*c", word) for word in fields)
        return runs and (text or (fields[0] == "eval" and entry(fields) is not None))

    def _train(self, where: str, words: list[str], fields: list[str]) -> None:
        if self.started:
            raise ConfigError(second_command(where, self.started))
        self.started = where
        self._take(where, words, fields)

    def _take(self, where: str, words: list[str], fields: list[str]) -> None:
        """Into the training command. ConfigError: an array of it is not known."""
        for name in _ARRAY_USED.findall(" ".join(words)):
            if name in self.values.arrays or name in self.values.variables:
                continue
            if name in self._unread:
                raise ConfigError(
                    f"{where}: found {name}, which {self._unread[name]} fills, expected an array in one "
                    f"piece such as {name}=(--lr 1e-6); write it so."
                )
            if self._gone:
                raise ConfigError(
                    f"{where}: found {name}, which the script does not set, expected an array from "
                    f"{' or '.join(self._gone)}, which is not there; put that file there."
                )
        if unknown := next((word for word in fields if re.search(r"\$\{!?\w+\[[@*]\]", word)), None):
            raise ConfigError(
                f"{where}: found {unknown}, expected a whole array such as ${{ARGS[@]}}; write it so."
            )
        self.command += fields
        self._before = "train"

    def _maybe_trains(self, command: Command, words: list[str], fields: list[str]) -> None:
        """Keep a command that is handed flags of arrays, for a script that does not name the program."""
        arrays = [self.values.arrays.get(name, []) for name in _ARRAY_USED.findall(" ".join(words))]
        if any(flags_of(items[:1]) for items in arrays):
            self._others.append((command.where, fields))


def as_name(word: str) -> str:
    """A path of the script, or the name of the variable that holds it."""
    variable = re.fullmatch(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)", word)
    return variable[1] or variable[2] if variable else word


def _places(named: str, script: Path) -> Iterator[Path]:
    """Where a file that is read may lie: as named, or else by the end of its path near the script.

    The script may be of another machine, such as slime's container, which has slime in /root/slime.
    """
    yield Path(named)
    parts = [part for part in Path(named).parts if part != "/"]
    for folder in list(script.absolute().parents)[:3]:
        for start in range(len(parts)):
            if start == 0 or len(parts) - start > 1:
                yield folder.joinpath(*parts[start:])


def _assigns(word: str | Array) -> bool:
    return isinstance(word, Array) or _ASSIGNED.fullmatch(word) is not None


def _unquoted(word: str | Array) -> str | Array:
    """`export "A=b"` without its quotes."""
    return word[1:-1] if isinstance(word, str) and len(word) > 1 and word[0] in "\"'" else word


def _parts(word: str) -> tuple[str, bool, str]:
    assigned = _ASSIGNED.fullmatch(word)
    assert assigned
    return assigned[1], bool(assigned[2]), assigned[3]


def _grows(word: str | Array) -> str:
    """The name that an assignment of a loop makes of its own value; or ""."""
    if isinstance(word, Array):
        return word.name if word.more or f"{{{word.name}[" in " ".join(word.words) else ""
    name, more, right = _parts(word)
    return name if more or re.search(rf"\$\(\(.*\b{name}\b|\$\{{?{name}\b", right) else ""


def _keywords(words: Sequence[str | Array]) -> int:
    """How many words of the grammar stand in front of a command."""
    return next((at for at, word in enumerate(words) if word not in _KEYWORDS), len(words))


def _body(commands: list[Command]) -> list[Command]:
    """Of a function that the first command begins to define: its commands, to the closing brace."""
    first = commands[0]
    if first.words[:1] != ["function"] or len(first.words) < 2:
        return []
    inner = replace(first, words=first.words[2:])
    depth = 0
    for at, command in enumerate([inner, *commands[1:]]):
        words = command.words[: _keywords(command.words)]
        depth += words.count("{") - words.count("}")
        if depth <= 0 and command.words:
            return [inner, *commands[1 : at + 1]] if "}" in words else []
    return []
