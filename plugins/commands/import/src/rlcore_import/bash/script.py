"""What a bash script hands the training program. Nothing is executed.

Evaluated as bash does, in an environment that has `--var` alone: variables, arrays, functions, `local`, `if`,
`case`, `&&`, `||`, loops of known rounds, subshells, `source`, `eval` of a known text, `exit`, `return`.

Where a condition is not known (`[ -n "$UNSET" ]`, `grep …`), both ways are taken, but none that ends the
script. What they set differently is unknown then. So is what a program sets (`read`, `$(date)`), or a loop
of unknown rounds. An unknown variable reaches the table of flags as `$NAME`. An unknown array or function
of the training command, and what is not read here, are refused by a sentence with the line.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from rlcore import ConfigError
from rlcore_import.bash import assignments
from rlcore_import.bash.conditions import Status, holds, nearby_file
from rlcore_import.bash.flow import Flow, Leave
from rlcore_import.bash.training import (
    ARRAY_USED,
    LOOKS_AT,
    environment_of,
    within_text,
)
from rlcore_import.bash.tree import Chain, commands, parse
from rlcore_import.bash.variables import ARGUMENTS, Part
from rlcore_import.bash.words import Array, Command, is_known, plain

_DECLARE = {"declare", "typeset", "export", "local", "readonly"}
_ITEM = re.compile(r"([A-Za-z_]\w*)\[(.*?)\](\+?)=(.*)", re.DOTALL)
_ENVIRONMENT = re.compile(
    r"(?:.*/)?(?:activate|conda\.sh|setvars\.sh|set_env\.sh|\.\w*rc|\.\w*profile)|/etc/.*"
)
"""Files that prepare the shell, and have no flags."""


@dataclass
class Script(Flow):
    """Reads a script into `values` and the `training` command."""

    _exported: set[str] = field(default_factory=set)
    _given: dict[str, str] = field(default_factory=dict)
    """Variables that the training command itself gives the program."""

    _ended: str = ""
    """Where the script ends, if by `exit`."""

    _read: list[list[Chain]] = field(default_factory=list)
    _running: list[str] = field(default_factory=list)
    _called: set[str] = field(default_factory=set)
    _open: list[Path] = field(default_factory=list)
    _gone: list[str] = field(default_factory=list)
    """Files that it reads and that are not there, each with its place."""

    _scopes: list[dict[str, Part]] = field(default_factory=list)
    """What the local names of each function that runs were before."""

    @property
    def files(self) -> dict[str, str]:
        """What the script writes, by path."""
        return self.values.files

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the training program gets, as far as they are known."""
        exported = {name: self.values.variables.get(name) for name in sorted(self._exported)}
        return {name: plain(value) for name, value in exported.items() if value is not None} | self._given

    def read(self, path: Path) -> None:
        """A script. ConfigError."""
        try:
            self._source_file(path, None)
        except Leave as left:
            self._ended = left.where
        self.values.script = path

    def words(self) -> list[str]:
        """The program and its flags; of a script without a training command, those of its arrays."""
        if self.training.started:
            return [plain(word) for word in self.training.command]
        self._refuse_hidden()
        return [plain(word) for word in self.training.of_others(self.values)]

    def _refuse_hidden(self) -> None:
        if self.training.quoted:
            raise ConfigError(within_text(self.training.quoted))
        for name, command in (one for body in self._read for one in commands(body)):
            if self.training.entry([word for word in command.words if isinstance(word, str)]) is None:
                continue
            if name and name not in self._called:
                raise ConfigError(
                    f"{command.where}: found the training command in the function {name}, which is not "
                    "called by its name, expected a call; write the command outside of the function."
                )
            raise ConfigError(
                f"{command.where}: found a training command that the script does not reach"
                f"{f', for it exits in {self._ended}' if self._ended else ''}, expected one that runs; give "
                "the variables of the condition before it with --var NAME=VALUE, or remove what ends it."
            )

    def _source_file(self, path: Path, own: list[str] | None) -> Status:
        if path in self._open:
            raise ConfigError(
                f"{path}: found a script that reads itself, expected one that ends; correct it."
            )
        try:
            text = path.read_text()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}.") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: found no text, expected a shell script.") from error
        outer, outer_own = self.values.script, self.values.own
        self.values.script = path
        if own is not None:
            self.values.arguments(own)
        self._open.append(path)
        self._read.append(body := parse(text, str(path)))
        try:
            return self.until_return(lambda: self.body(body))
        finally:
            self._open.pop()
            self.values.script = outer
            if own is not None:
                self.values.arguments(outer_own)

    def command(self, command: Command) -> Status:
        trained, self.training = self.training.is_last, replace(self.training, is_last=False)
        first = next(
            (at for at, word in enumerate(command.words) if not assignments.assigns(word)), len(command.words)
        )
        before, words = (
            command.words[:first],
            [word for word in command.words[first:] if isinstance(word, str)],
        )
        if not words:
            for word in before:
                self._look(assignments.assign(word, command.where, self.values), command.where)
            return None if any("$(" in str(word) or "`" in str(word) for word in before) else True
        if words[0] in _DECLARE:
            scope = self._scopes[-1] if self._scopes else None
            if words[0] == "export":
                self._exported |= {plain(word).strip("\"'").partition("=")[0] for word in words[1:]}
            self._look(assignments.declare(command, words, self.values, scope), command.where)
            return True
        if item := _ITEM.fullmatch(words[0]):  # A[0]=b
            assignments.assign_item(item, command.where, self.values)
            return True
        name = next(iter(self.values.fields(words[0])), "")
        if name in ("command", "builtin") and len(words) > 1 and not words[1].startswith("-"):
            name, words = words[1], words[1:]
        if name in self.values.functions:
            return self._call(name, words, before, command.where)
        if why := self.values.unknown.get(f"{name}()"):
            raise ConfigError(
                f"{command.where}: found the function {name}, which {why}, expected a known one; define it "
                "once, or give the variables of the condition with --var NAME=VALUE."
            )
        if (status := self._builtin(command, name, words[1:])) != "none":
            return status
        return self._other(command, words, trained)

    def _builtin(self, command: Command, name: str, more: list[str]) -> Status | Literal["none"]:
        """What changes the shell itself; "none": it is another command."""
        match name:
            case "true" | ":":
                self.values.all_fields(more)  # `: ${A:=b}` sets A
                return True
            case "false":
                return False
            case "[" | "[[" | "test":
                return holds([name, *more], self.values)
            case "let":
                return assignments.let(more, command.where, self.values)
            case "." | "source" if more:
                return self._source(command, more)
            case "eval":
                return self._eval(command, more)
            case "exit" | "return" | "break" | "continue":
                return self._leave(name, self.values.text(more[0]) if more else "", command.where)
            case "set" | "shift":
                return assignments.arguments(name, more, self.values)
            case "unset" | "read" | "mapfile" | "readarray" | "getopts" | "printf":
                return assignments.change(name, more, command.where, self.values)
            case "cat" if command.target and command.text is not None:
                return self._write(command)
        return "none"

    def _leave(self, kind: str, more: str, where: str) -> Status:
        status = int(more) == 0 if more.isdigit() else None if more else self.status
        if kind == "return" and not self._running and len(self._open) < 2:
            return False  # bash reads on
        if kind in ("exit", "return"):
            raise Leave(kind, where, status=status)
        if self.loops:
            raise Leave(kind, where, levels=min(int(more) if more.isdigit() else 1, len(self.loops)))
        return True

    def _call(self, name: str, words: list[str], before: Sequence[str | Array], where: str) -> Status:
        """A function of the script, with its own arguments and its own local names."""
        if name in self._running:
            raise ConfigError(
                f"{where}: found {name} within itself, expected another function; write it as a loop."
            )
        outer, loops = self.values.own, self.loops
        unknown = self.values.unknown.get(ARGUMENTS)
        self.values.arguments(self.values.all_fields(words[1:]))
        self._running.append(name)
        self._called.add(name)
        self._scopes.append({})
        self.loops = []
        for word in before:  # `A=1 f`
            if isinstance(word, str):
                local, _, _ = assignments.parts(word)
                self._scopes[-1].setdefault(local, self.values.part(local))
                self._look(assignments.assign(word, where, self.values), where)
        try:
            return self.until_return(lambda: self.node(self.values.functions[name].body))
        finally:
            for local, part in self._scopes.pop().items():
                self.values.put(local, part)
            self.loops = loops
            self._running.pop()
            self.values.arguments(outer, unknown)

    def _write(self, command: Command) -> Status:
        body = command.text or ""
        self._look(body, command.where)
        path = as_name(plain(self.values.text(command.target)))
        text = body if command.literal else plain(self.values.text(body, quoted=True))
        if not command.more:
            self.values.files[path] = text
        elif path in self.values.files:
            self.values.files[path] += f"\n{text}"
        return True

    def _source(self, command: Command, more: list[str]) -> Status:
        named = plain(self.values.text(more[0]))
        if _ENVIRONMENT.fullmatch(named):
            return None
        if script := nearby_file(named, self.values.script):
            return self._source_file(script, self.values.all_fields(more[1:]) or None)
        self._gone.append(f"{named} ({command.where})")
        if not self.branches:
            raise ConfigError(
                f"{command.where}: found `source {named}`, expected a file that is there; put it there, or "
                "remove the line if no flag comes from it."
            )
        return None

    def _eval(self, command: Command, more: list[str]) -> Status:
        fields = self.values.all_fields(more)
        if self._is_text(["eval", *map(plain, fields)], command):
            raise ConfigError(within_text(command.where))
        text = " ".join(fields)
        if is_known(text):
            return self.body(parse(text, f"{command.where}, eval"))
        if re.fullmatch(r"[\"']?(\$\(.*\)|`.*`)[\"']?", " ".join(more), re.DOTALL):
            return None  # a program prepares the shell, as conda does
        raise ConfigError(
            f"{command.where}: found an eval of {plain(text)}, which rlcore does not know, expected a known "
            "text; write the line that it runs."
        )

    def _other(self, command: Command, words: list[str], trained: bool) -> Status:
        """Any program: perhaps the one that trains."""
        marked = self.values.all_fields(words)
        fields = [plain(word) for word in marked]
        at = self.training.entry(fields)
        if self._is_text(fields, command):
            raise ConfigError(within_text(command.where))
        if at is not None:
            texts = (word for word in command.words if isinstance(word, str))
            before = [
                plain(self.values.text(word)) for word in itertools.takewhile(assignments.assigns, texts)
            ]
            self._given |= environment_of([*before, *fields[:at]])
            self.training = self.training.start(command.where, words, marked[at:], self.values, self._gone)
        elif trained and self.training.launch.flag.match(words[0]):
            raise ConfigError(
                f"{command.where}: found {words[0]} as a command of its own, expected it in the training "
                "command; end each line before it with a backslash, and take comments out from between them."
            )
        elif trained and all(map(ARRAY_USED.match, words)):
            # as if the backslash before it were there
            self.training = self.training.take(command.where, words, marked, self.values, self._gone)
        elif fields[:1] and fields[0] not in LOOKS_AT:
            self.training = self.training.maybe(command.where, words, fields, self.values)
        if command.target:
            self.values.files.pop(as_name(plain(self.values.text(command.target))), None)
        if fields[:1] == ["exec"] and len(fields) > 1:
            raise Leave("exit", command.where)
        return None

    def _is_text(self, fields: list[str], command: Command) -> bool:
        """Whether a shell is handed the training command as a text."""
        if not fields or fields[0] in LOOKS_AT:
            return False
        text = any(self.training.launch.starts.search(word) for word in fields)
        if text or (command.text is not None and self.training.launch.starts.search(command.text)):
            self.training = replace(self.training, quoted=command.where)
        runs = fields[0] in ("eval", "ssh") or any(re.fullmatch(r"-[a-z]*c", word) for word in fields)
        return runs and (text or (fields[0] == "eval" and self.training.entry(fields) is not None))

    def _look(self, text: str, where: str) -> None:
        """For a training command within a text."""
        self.training = self.training.look(text, where)


def as_name(word: str) -> str:
    """A path of the script, or the name of the variable that holds it."""
    variable = re.fullmatch(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)", word)
    return variable[1] or variable[2] if variable else word
