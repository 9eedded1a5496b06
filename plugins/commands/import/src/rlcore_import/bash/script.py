"""What a bash script hands the training program. Nothing is executed.

Evaluated as bash does, in an environment that has `--var` alone: variables, arrays, functions, `local`, `if`,
`case`, `&&`, `||`, loops of known rounds, subshells, `source`, `eval` of a known text, `exit`, `return`.

Where a condition is not known (`[ -n "$UNSET" ]`, `grep …`), both ways are taken, but none that ends the
script. What they set differently is unknown then. So is what a program sets (`read`, `$(date)`), or a loop
of unknown rounds. An unknown variable reaches the table of flags as `$NAME`. An unknown array or function
of the training command, and what is not read here, are refused by a sentence with the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from rlcore import ConfigError
from rlcore_import.bash.conditions import Status, any_of, holds, is_open, matches, near, negation
from rlcore_import.bash.sums import SETS
from rlcore_import.bash.training import LOOKS_AT, STARTS, entry, flags_of, second_command, within_text
from rlcore_import.bash.tree import Case, Chain, Function, Group, If, Loop, Node, Pipeline, commands, parse
from rlcore_import.bash.values import ARGUMENTS, Values, braced, is_known, plain
from rlcore_import.bash.words import Array, Command

_DECLARE = {"declare", "typeset", "export", "local", "readonly"}
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ITEM = re.compile(r"([A-Za-z_]\w*)\[(.*?)\](\+?)=(.*)", re.DOTALL)
_SET = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)", re.DOTALL)
_STEP = re.compile(r"\s*(\+\+|--)?\s*([A-Za-z_]\w*)\s*(\+\+|--)?\s*")
_ARRAY_USED = re.compile(r"\"?\$\{([A-Za-z_]\w*)\[")
_ENVIRONMENT = re.compile(
    r"(?:.*/)?(?:activate|conda\.sh|setvars\.sh|set_env\.sh|\.\w*rc|\.\w*profile)|/etc/.*"
)
"""Files that prepare the shell, and have no flags."""

_ROUNDS = 1000
"""Of all loops of a script; those behind are not followed."""


@dataclass(frozen=True)
class _Found:
    """The training command so far. `others`: commands with flags of arrays that do not name the program.

    `quoted`: where it stands within a text. `trained`: whether it was the last command.
    """

    command: tuple[str, ...] = ()
    started: str = ""
    others: tuple[tuple[str, list[str]], ...] = ()
    quoted: str = ""
    trained: bool = False


class _Leave(Exception):  # noqa: N818  # no error
    """`exit`, `return`, `break` or `continue`. `levels`: how many loops."""

    def __init__(self, kind: str, where: str, levels: int = 1, status: Status = None) -> None:
        self.kind, self.where, self.levels, self.status = kind, where, levels, status


class _RoundsUnknown(Exception):  # noqa: N818  # no error
    """Of a loop."""


@dataclass
class Script:
    """Reads a script into `values` and the training command: `started`, where it stands."""

    values: Values
    _found: _Found = field(default_factory=_Found)
    _ended: str = ""
    """Where the script ends, if by `exit`."""

    _read: list[list[Chain]] = field(default_factory=list)
    _running: list[str] = field(default_factory=list)
    _open: list[Path] = field(default_factory=list)
    _gone: list[str] = field(default_factory=list)
    """Files that it reads and that are not there, each with its place."""

    _scopes: list[dict[str, tuple[object, ...]]] = field(default_factory=list)
    """Of each function that runs: what its local names were before."""

    _loops: list[bool] = field(default_factory=list)
    """Of each loop that runs: whether its rounds are known."""

    _rounds: int = 0
    _called: set[str] = field(default_factory=set)
    _branches: int = 0
    _maybe_returned: bool = False
    _status: Status = True
    """`$?`"""

    _doubt: str = ""
    """The last condition that is not known."""

    @property
    def files(self) -> dict[str, str]:
        """What the script writes, by path."""
        return self.values.files

    def read(self, path: Path) -> None:
        """A script. ConfigError."""
        try:
            self._source_file(path, None)
        except _Leave as left:
            self._ended = left.where
        self.values.script = path

    def words(self) -> list[str]:
        """The program and its flags; of a script without a training command, those of its arrays."""
        if self._found.started:
            return [plain(word) for word in self._found.command]
        self._refuse_hidden()
        return [plain(word) for word in self._of_others()]

    def _refuse_hidden(self) -> None:
        if self._found.quoted:
            raise ConfigError(within_text(self._found.quoted))
        for name, command in (one for body in self._read for one in commands(body)):
            if entry([word for word in command.words if isinstance(word, str)]) is None:
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

    def _of_others(self) -> Sequence[str]:
        if len(self._found.others) > 1:
            (first, _), (second, _) = self._found.others[:2]
            raise ConfigError(second_command(second, first))
        for _, words in self._found.others:
            return flags_of(words)
        for name, why in self.values.unknown.items():
            if name.endswith("ARGS"):
                raise ConfigError(self._unknown(str(self.values.script), name, why))
        arrays = [items for items in self.values.arrays.values() if flags_of(items[:1])]
        return [item for items in arrays for item in items]

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
            return self._until_return(lambda: self._body(body))
        finally:
            self._open.pop()
            self.values.script = outer
            if own is not None:
                self.values.arguments(outer_own)

    def _until_return(self, run: Callable[[], Status]) -> Status:
        """Of a function or a sourced file. After a `return` that may have been, its changes are unknown."""
        before, outer, self._maybe_returned = len(self.values.changed), self._maybe_returned, False
        try:
            status = run()
        except _Leave as left:
            if left.kind != "return":
                raise
            status = left.status
        if self._maybe_returned:
            status = None
            for name in self.values.changed[before:]:
                self.values.forget(name, f"changes by whether {self._doubt} returns")
        self._maybe_returned = outer
        return status

    def _body(self, chains: list[Chain]) -> Status:
        status: Status = True
        for chain in chains:
            if chain.background:
                self._apart(partial(self._chain, chain))
                status = True
            else:
                status = self._chain(chain)
        return status

    def _chain(self, chain: Chain) -> Status:
        status = self._pipeline(chain.steps[0][1])
        for operator, pipeline in chain.steps[1:]:
            ends = operator == "||"  # by success
            if status is None:
                status = self._either([partial(self._pipeline, pipeline), partial(bool, ends)])
            elif status is not ends:
                status = self._pipeline(pipeline)
        return status

    def _pipeline(self, pipeline: Pipeline) -> Status:
        *first, last = pipeline.parts
        if not first:
            status = self._node(last)
        else:  # each in a shell of its own
            for part in first:
                self._apart(partial(self._node, part))
            status = self._apart(lambda: self._node(last))
        if status is None:
            self._doubt = f"`{' '.join(pipeline.text.split())}` ({pipeline.where})"
        self._status = negation(status) if pipeline.negated else status
        return self._status

    def _apart(self, run: Callable[[], Status]) -> Status:
        """In a shell of its own: what it sets holds there alone."""
        outer, self.values = self.values, self.values.copy()
        loops, self._loops = self._loops, []
        try:
            return run()
        except _Leave as left:
            return left.status
        finally:
            files = self.values.files
            self.values, self._loops = outer, loops
            self.values.files = files

    def _either(self, ways: Sequence[Callable[[], Status]]) -> Status:
        """One of `ways` is the script's, and which one is not known. _Leave: each of them leaves."""
        before, doubt = self.values, self._doubt
        ends: list[tuple[Values, Status]] = []
        leaves: list[_Leave] = []
        for way in ways:
            self.values = before.copy()
            self._branches += 1
            try:
                status = way()
            except _Leave as left:
                leaves.append(left)
            else:
                ends.append((self.values, status))
            finally:
                self._branches -= 1
        self.values, self._doubt, self._status = before, doubt, None
        if not ends:
            raise next((leave for leave in leaves if leave.kind != "exit"), leaves[0])
        for leave in leaves:
            self._maybe_leave(leave)
        (self.values, status), *others = ends
        for values, other in others:
            self.values.merge(values, f"changes by a condition that rlcore does not know, {doubt}")
            status = status if status is other else None
        return status

    def _maybe_leave(self, left: _Leave) -> None:
        """Read on as if it did not: a script that ends has no training command behind it."""
        if left.kind == "return":
            self._maybe_returned = True
        elif left.kind in ("break", "continue") and self._loops:
            if left.levels > 1:
                raise ConfigError(
                    f"{left.where}: found {left.kind} {left.levels} under a condition that rlcore does not "
                    f"know, {self._doubt}, expected a known one; give its variables with --var NAME=VALUE."
                )
            if self._loops[-1]:
                raise _RoundsUnknown

    def _node(self, node: Node) -> Status:
        match node:
            case Command():
                return self._command(node)
            case Group():
                return self._apart(lambda: self._body(node.body)) if node.shell else self._body(node.body)
            case If():
                return self._if(node.arms, node.other)
            case Case():
                return self._case(node.arms, self.values.known(node.word))
            case Loop():
                return self._loop(node)
            case Function():
                self.values.functions[node.name] = node
                self.values.unknown.pop(node.name, None)
                return True

    def _if(self, arms: list[tuple[list[Chain], list[Chain]]], other: list[Chain]) -> Status:
        if not arms:
            return self._body(other)
        (condition, body), *rest = arms
        status = self._body(condition)
        if status is None:
            return self._either([lambda: self._body(body), lambda: self._if(rest, other)])
        return self._body(body) if status else self._if(rest, other)

    def _case(self, arms: list[tuple[list[str], list[Chain], str]], word: str | None) -> Status:
        if not arms:
            return True
        fits = any_of([matches(word, pattern, self.values) for pattern in arms[0][0]])
        if fits is None:
            self._doubt = f"a case with {' | '.join(arms[0][0])}"
            return self._either([lambda: self._arm(arms, word), lambda: self._case(arms[1:], word)])
        return self._arm(arms, word) if fits else self._case(arms[1:], word)

    def _arm(self, arms: list[tuple[list[str], list[Chain], str]], word: str | None) -> Status:
        _, body, end = arms[0]
        status = self._body(body)
        if end == ";;&":
            return self._case(arms[1:], word)
        return self._arm(arms[1:], word) if end == ";&" and len(arms) > 1 else status

    def _loop(self, loop: Loop) -> Status:
        values, found = self.values.copy(), self._found
        try:
            self._known_rounds(loop)
        except _RoundsUnknown:
            self.values, self._found = values, found
            self._unknown_rounds(loop)
        return None

    def _known_rounds(self, loop: Loop) -> None:
        """_RoundsUnknown: how many there are depends on what is not known."""
        if loop.kind == "for":
            words = self.values.all_fields(loop.words)
            if not all(map(is_known, words)):
                raise _RoundsUnknown
            for word in words:
                self.values.assign(loop.name, word, loop.where)
                if not self._round(loop.body, known=True):
                    return
            return
        if loop.kind == "((":
            self._let(loop.words[:1], loop.where)
        while (status := self._goes_on(loop)) is not False:
            if status is None or not self._round(loop.body, known=True):
                if status is None:
                    raise _RoundsUnknown
                return
            if loop.kind == "((":
                self._let(loop.words[2:], loop.where)

    def _goes_on(self, loop: Loop) -> Status:
        if loop.kind == "((":
            return self._let(loop.words[1:2], loop.where) if loop.words[1].strip() else True
        if loop.kind == "select":
            return None
        status = self._body(loop.condition)
        return negation(status) if loop.kind == "until" else status

    def _round(self, body: list[Chain], known: bool) -> bool:
        """Whether another may follow. _RoundsUnknown: there were too many."""
        self._rounds += known
        if known and self._rounds > _ROUNDS:
            raise _RoundsUnknown
        self._loops.append(known)
        try:
            self._body(body)
        except _Leave as left:
            if left.kind not in ("break", "continue"):
                raise
            if left.levels > 1:
                raise _Leave(left.kind, left.where, left.levels - 1) from None
            return left.kind == "continue"
        finally:
            self._loops.pop()
        return True

    def _unknown_rounds(self, loop: Loop) -> None:
        """What the body changes is not known in it, nor behind it; so it is read until nothing is added."""
        why = f"changes in a loop whose rounds rlcore does not know ({loop.where})"
        values, found = self.values.copy(), self._found
        names = {loop.name} - {""}
        while True:
            self.values, self._found = values.copy(), found
            before = len(self.values.changed)
            for name in names:
                self.values.forget(name, why)
            self._either([partial(self._unknown_round, loop), lambda: None])
            more = set(self.values.changed[before:])
            if more <= names:
                break
            names |= more
        for name in names:
            self.values.forget(name, why)

    def _unknown_round(self, loop: Loop) -> Status:
        if loop.kind == "((":
            self._let(loop.words, loop.where)
        self._body(loop.condition)
        self._round(loop.body, known=False)
        return None

    def _command(self, command: Command) -> Status:
        trained, self._found = self._found.trained, replace(self._found, trained=False)
        first = next((at for at, word in enumerate(command.words) if not _assigns(word)), len(command.words))
        before, words = (
            command.words[:first],
            [word for word in command.words[first:] if isinstance(word, str)],
        )
        if not words:
            for word in before:
                self._assign(word, command.where)
            return None if any("$(" in str(word) or "`" in str(word) for word in before) else True
        if words[0] in _DECLARE:
            return self._declare(command, words)
        if item := _ITEM.fullmatch(words[0]):  # A[0]=b
            self._assign_item(item, command.where)
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
                return self._let(more, command.where)
            case "." | "source" if more:
                return self._source(command, more)
            case "eval":
                return self._eval(command, more)
            case "exit" | "return" | "break" | "continue":
                return self._leave(name, self.values.text(more[0]) if more else "", command.where)
            case "set" | "shift":
                return self._arguments(name, more)
            case "unset" | "read" | "mapfile" | "readarray" | "getopts" | "printf":
                return self._change(name, more, command)
            case "cat" if command.target and command.text is not None:
                return self._write(command)
        return "none"

    def _assign(self, word: str | Array, where: str) -> None:
        if isinstance(word, Array):
            self.values.extend(word.name, word.words, more=word.more)
            if any(re.match(r"\[.*\]=", item) for item in word.words):  # A=([2]=b)
                self.values.forget(word.name, f"{where} fills")
            return
        name, more, right = _parts(word)
        if not more and is_open(right, self.values):  # `A=${A:-}`
            self.values.unset(name)
        elif more and name in self.values.arrays:  # of its first item
            self.values.forget(name, f"{where} fills")
        elif not (more and name in self.values.unknown):
            value = self.values.text(right)
            value = self.values.variables.get(name, "") + value if more else value
            if STARTS.search(value):
                self._found = replace(self._found, quoted=where)
            self.values.assign(name, value, f"{where} fills")

    def _assign_item(self, item: re.Match[str], where: str) -> None:
        name, index, more, right = item.groups()
        if more or not self.values.replace_item(name, index, right):
            self.values.forget(name, f"{where} fills")

    def _declare(self, command: Command, words: list[str]) -> Status:
        """`declare`, `local`, `export` and the like."""
        options = "".join(word[1:] for word in words if re.fullmatch(r"-\w+", word))
        if "n" in options and words[0] not in ("export", "readonly"):
            raise ConfigError(
                f"{command.where}: found `{words[0]} -n`, expected no name that stands for another; write "
                "the variable's own name."
            )
        local = self._scopes and words[0] in ("local", "declare", "typeset") and "g" not in options
        given = command.words[command.words.index(words[0]) + 1 :]
        split = [one for word in given for one in (braced(word) if isinstance(word, str) else [word])]
        for word in map(_unquoted, split):
            name = word.name if isinstance(word, Array) else re.split(r"\+?=", word)[0]
            if not name.isidentifier():
                continue
            if local:
                self._scopes[-1].setdefault(name, self.values.part(name))
                if not _assigns(word):
                    self.values.unset(name)
            if _assigns(word):
                self._assign(word, command.where)
            if re.search("[iAlu]", options) and words[0] not in ("export", "readonly"):
                self.values.forget(name, f"{command.where} fills")
        return True

    def _let(self, texts: Sequence[str], where: str) -> Status:
        """`let` and `((…))`: whether the last is not 0."""
        value: str | None = None
        for text in map(self.values.text, texts):
            if (step := _STEP.fullmatch(text)) and bool(step[1]) != bool(step[3]):
                value = self._set_sum(step[2], f"{step[2]}{(step[1] or step[3])[0]}1", where)
                value = (
                    value
                    if step[1] or value is None
                    else self.values.sum(f"{value}{'-' if step[3] == '++' else '+'}1")
                )
            elif (setting := _SET.fullmatch(text)) and not SETS.search(setting[3]):
                name, operator, right = setting.groups()
                value = self._set_sum(name, f"{name}{operator}({right})" if operator else right, where)
            else:
                value = self.values.sum(text)
        return None if value is None else value != "0"

    def _set_sum(self, name: str, text: str, where: str) -> str | None:
        value = self.values.sum(text)
        if value is None:
            self.values.forget(name, f"{where} fills")
        else:
            self.values.assign(name, value, where)
        return value

    def _leave(self, kind: str, more: str, where: str) -> Status:
        status = int(more) == 0 if more.isdigit() else None if more else self._status
        if kind == "return" and not self._running and len(self._open) < 2:
            return False  # bash reads on
        if kind in ("exit", "return"):
            raise _Leave(kind, where, status=status)
        if self._loops:
            raise _Leave(kind, where, levels=min(int(more) if more.isdigit() else 1, len(self._loops)))
        return True

    def _arguments(self, name: str, more: list[str]) -> Status:
        """`set` and `shift`."""
        if name == "shift":
            count = self.values.text(more[0]) if more else "1"
            self.values.shift(int(count) if count.isdigit() else None)
        elif "--" in more or (more and more[0][0] not in "-+"):
            self.values.arguments(self.values.all_fields(more[more.index("--") + 1 if "--" in more else 0 :]))
        return True

    def _change(self, name: str, more: list[str], command: Command) -> Status:
        """Of commands that set variables to what is not known here."""
        for word in map(self.values.text, more[:2] if name == "printf" else more):
            changed = re.fullmatch(r"([A-Za-z_]\w*)(\[.*)?", word, re.DOTALL)
            if changed and name == "unset" and not changed[2]:
                self.values.unset(changed[1])
            elif changed and (name != "printf" or more[0] == "-v"):
                self.values.forget(changed[1], f"{command.where} fills")
        return True if name in ("unset", "printf") else None

    def _call(self, name: str, words: list[str], before: Sequence[str | Array], where: str) -> Status:
        """A function of the script, with its own arguments and its own local names."""
        if name in self._running:
            raise ConfigError(
                f"{where}: found {name} within itself, expected another function; write it as a loop."
            )
        outer, loops = self.values.own, self._loops
        unknown = self.values.unknown.get(ARGUMENTS)
        self.values.arguments(self.values.all_fields(words[1:]))
        self._running.append(name)
        self._called.add(name)
        self._scopes.append({})
        self._loops = []
        for word in before:  # `A=1 f`
            if isinstance(word, str):
                self._scopes[-1].setdefault(_parts(word)[0], self.values.part(_parts(word)[0]))
                self._assign(word, where)
        try:
            return self._until_return(lambda: self._node(self.values.functions[name].body))
        finally:
            for local, part in self._scopes.pop().items():
                self.values.put(local, part)
            self._loops = loops
            self._running.pop()
            self.values.arguments(outer, unknown)

    def _write(self, command: Command) -> Status:
        body = command.text or ""
        if STARTS.search(body):
            self._found = replace(self._found, quoted=command.where)
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
        if script := near(named, self.values.script):
            return self._source_file(script, self.values.all_fields(more[1:]) or None)
        self._gone.append(f"{named} ({command.where})")
        if not self._branches:
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
            return self._body(parse(text, f"{command.where}, eval"))
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
        at = entry(fields)
        if self._is_text(fields, command):
            raise ConfigError(within_text(command.where))
        if at is not None:
            self._train(command.where, words, marked[at:])
        elif trained and words[0].startswith("--"):
            raise ConfigError(
                f"{command.where}: found {words[0]} as a command of its own, expected it in the training "
                "command; end each line before it with a backslash, and take comments out from between them."
            )
        elif trained and all(map(_ARRAY_USED.match, words)):
            self._take(command.where, words, marked)  # as if the backslash before it were there
        elif fields[:1] and fields[0] not in LOOKS_AT:
            self._maybe_trains(command, words, fields)
        if command.target:
            self.values.files.pop(as_name(plain(self.values.text(command.target))), None)
        if fields[:1] == ["exec"] and len(fields) > 1:
            raise _Leave("exit", command.where)
        return None

    def _is_text(self, fields: list[str], command: Command) -> bool:
        """Whether a shell is handed the training command as a text."""
        if not fields or fields[0] in LOOKS_AT:
            return False
        text = any(STARTS.search(word) for word in fields)
        if text or (command.text is not None and STARTS.search(command.text)):
            self._found = replace(self._found, quoted=command.where)
        runs = fields[0] in ("eval", "ssh") or any(re.fullmatch(r"-[a-z]*c", word) for word in fields)
        return runs and (text or (fields[0] == "eval" and entry(fields) is not None))

    def _train(self, where: str, words: list[str], fields: list[str]) -> None:
        if self._found.started:
            raise ConfigError(second_command(where, self._found.started))
        self._found = replace(self._found, started=where)
        self._take(where, words, fields)

    def _take(self, where: str, words: list[str], fields: list[str]) -> None:
        """Into the training command. ConfigError: an array of it is not known."""
        text = " ".join([*words, *map(plain, fields)])
        for name in [*_ARRAY_USED.findall(text), *([ARGUMENTS] if re.search(r"\$\{?[@*]", text) else [])]:
            if why := self.values.unknown.get(name):
                raise ConfigError(self._unknown(where, name, why))
            if self._gone and name not in self.values.arrays and name not in self.values.variables:
                raise ConfigError(
                    f"{where}: found {name}, which the script does not set, expected an array from "
                    f"{' or '.join(self._gone)}, which is not there; put that file there."
                )
        if unknown := next(
            (word for word in map(plain, fields) if re.search(r"\$\{!?\w+\[[@*]\]", word)), None
        ):
            raise ConfigError(
                f"{where}: found {unknown}, expected a whole array such as ${{ARGS[@]}}; write it so."
            )
        self._found = replace(self._found, command=(*self._found.command, *fields), trained=True)

    def _unknown(self, where: str, name: str, why: str) -> str:
        used, name = ("$@", "ARGS") if name == ARGUMENTS else (name, name)
        more = ", or give the variables that it depends on with --var NAME=VALUE" if "changes" in why else ""
        return (
            f"{where}: found {used}, which {why}, expected an array in one piece such as {name}=(--lr 1e-6); "
            f"write it so{more}."
        )

    def _maybe_trains(self, command: Command, words: list[str], fields: list[str]) -> None:
        """Keep a command that is handed flags of arrays, for a script that does not name the program."""
        used = _ARRAY_USED.findall(" ".join(words))
        arrays = [self.values.arrays.get(name, []) for name in used]
        if any(flags_of(items[:1]) for items in arrays):
            self._found = replace(self._found, others=(*self._found.others, (command.where, fields)))


def as_name(word: str) -> str:
    """A path of the script, or the name of the variable that holds it."""
    variable = re.fullmatch(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)", word)
    return variable[1] or variable[2] if variable else word


def _assigns(word: str | Array) -> bool:
    return isinstance(word, Array) or _ASSIGNED.fullmatch(word) is not None


def _unquoted(word: str | Array) -> str | Array:
    """`export "A=b"` without its quotes."""
    return word[1:-1] if isinstance(word, str) and len(word) > 1 and word[0] in "\"'" else word


def _parts(word: str) -> tuple[str, bool, str]:
    assigned = _ASSIGNED.fullmatch(word)
    assert assigned
    return assigned[1], bool(assigned[2]), assigned[3]
