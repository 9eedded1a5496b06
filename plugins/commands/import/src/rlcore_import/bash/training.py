"""The training command of a bash script."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from rlcore import ConfigError
from rlcore_import.bash.values import Values
from rlcore_import.bash.variables import ARGUMENTS
from rlcore_import.bash.words import plain


@dataclass(frozen=True)
class Launch:
    """How a framework's training command looks.

    `entry`: the word that names the program. `starts`: the same within a text. `flag`: how a flag begins.
    """

    entry: re.Pattern[str]
    starts: re.Pattern[str]
    flag: re.Pattern[str]


DASHES = re.compile(r"--[A-Za-z]")
TRAIN_PY = Launch(
    re.compile(r"\S*\btrain\w*\.py"),
    re.compile(r"\bpython\S*\s(?:\S+\s+)*?\S*\btrain\w*\.py"),
    DASHES,
)
"""slime's."""

LOOKS_AT = {
    *("[", "[[", "test", "cat", "head", "tail", "grep", "sed", "awk", "diff", "wc", "echo", "printf", "git"),
    *("cp", "mv", "rm", "ln", "ls", "chmod", "touch", "tar", "kill", "pgrep", "pkill", "ps", "exit", "trap"),
}
"""Programs that may name the training program, and do not start it."""

_LOOKS_FOR = {"grep", "kill", "pgrep", "pkill"}
"""These also behind `sudo` or `docker exec`."""

VARIABLE = re.compile(r'"([A-Za-z_]\w*)"\s*:\s*"([^"]*)"')
"""A variable of the environment in the JSON of `--runtime-env-json`."""

ARRAY_USED = re.compile(r"\"?\$\{([A-Za-z_]\w*)\[")


@dataclass(frozen=True)
class Training:
    """The training command so far. `others`: commands with flags of arrays that do not name the program.

    `started`: where it stands. `quoted`: where it stands within a text. `is_last`: whether no other command
    came after it.
    """

    launch: Launch = TRAIN_PY
    command: tuple[str, ...] = ()
    started: str = ""
    others: tuple[tuple[str, list[str]], ...] = ()
    quoted: str = ""
    is_last: bool = False

    def look(self, text: str, where: str) -> Self:
        """`text` may hold the command."""
        return replace(self, quoted=where) if self.launch.starts.search(text) else self

    def start(self, where: str, words: list[str], fields: list[str], values: Values, gone: list[str]) -> Self:
        """The command begins; `take` says the rest."""
        if self.started:
            raise ConfigError(second_command(where, self.started))
        return replace(self, started=where).take(where, words, fields, values, gone)

    def take(self, where: str, words: list[str], fields: list[str], values: Values, gone: list[str]) -> Self:
        """Into the command, `words` as `fields`. ConfigError: an array of it is not known.

        `gone`: files that the script reads and that are not there, each with its place.
        """
        text = " ".join([*words, *map(plain, fields)])
        for name in [*ARRAY_USED.findall(text), *([ARGUMENTS] if re.search(r"\$\{?[@*]", text) else [])]:
            if why := values.unknown.get(name):
                raise ConfigError(_unknown(where, name, why))
            if gone and name not in values.arrays and name not in values.variables:
                raise ConfigError(
                    f"{where}: found {name}, which the script does not set, expected an array from "
                    f"{' or '.join(gone)}, which is not there; put that file there."
                )
        if unknown := next(
            (word for word in map(plain, fields) if re.search(r"\$\{!?\w+\[[@*]\]", word)), None
        ):
            raise ConfigError(
                f"{where}: found {unknown}, expected a whole array such as ${{ARGS[@]}}; write it so."
            )
        return replace(self, command=(*self.command, *fields), is_last=True)

    def maybe(self, where: str, words: list[str], fields: list[str], values: Values) -> Self:
        """Keep a command that is handed flags of arrays, for a script that does not name the program."""
        used = ARRAY_USED.findall(" ".join(words))
        arrays = [values.arrays.get(name, []) for name in used]
        if any(self._flags_of(items[:1]) for items in arrays):
            return replace(self, others=(*self.others, (where, fields)))
        return self

    def of_others(self, values: Values) -> Sequence[str]:
        """The flags of a script without a training program: those of its one command, or of its arrays."""
        if len(self.others) > 1:
            (first, _), (second, _) = self.others[:2]
            raise ConfigError(second_command(second, first))
        for _, words in self.others:
            return self._flags_of(words)
        for name, why in values.unknown.items():
            if name.endswith("ARGS"):
                raise ConfigError(_unknown(str(values.script), name, why))
        arrays = [items for items in values.arrays.values() if self._flags_of(items[:1])]
        return [item for items in arrays for item in items]

    def entry(self, fields: list[str]) -> int | None:
        """Where the training program is named by a command that starts it."""
        names = (
            at for at, word in enumerate(fields) if self.launch.entry.fullmatch(word) and "=" not in word
        )
        at = next(names, None)
        if at is None or fields[0] in LOOKS_AT or _LOOKS_FOR.intersection(fields[:at]):
            return None
        return at

    def _flags_of(self, words: list[str]) -> list[str]:
        """`words` from the first flag on; behind ` -- ` if it is there."""
        words = words[words.index("--") + 1 :] if "--" in words else words
        first = next((at for at, word in enumerate(words) if self.launch.flag.match(word)), len(words))
        return words[first:]


def environment_of(fields: Sequence[str]) -> dict[str, str]:
    """The variables that a command gives the training program, whose words before it are `fields`."""
    before = {name: value for name, equals, value in (word.partition("=") for word in fields) if equals}
    given = {name: value for name, value in before.items() if name.isidentifier()}
    after = dict(itertools.pairwise(fields))
    flag = "--runtime-env-json"
    return given | dict(VARIABLE.findall(before.get(flag) or after.get(flag, "")))


def second_command(second: str, first: str) -> str:
    return (
        f"{second}: found a second training command (the first is in {first}), expected one; make one script "
        "for each, or comment the other out."
    )


def within_text(where: str) -> str:
    return (
        f"{where}: found the training command inside a quoted text, expected it as a command of its own; "
        "write it on a line without the quotes around it."
    )


def _unknown(where: str, name: str, why: str) -> str:
    used, name = ("$@", "ARGS") if name == ARGUMENTS else (name, name)
    more = ", or give the variables that it depends on with --var NAME=VALUE" if "changes" in why else ""
    return (
        f"{where}: found {used}, which {why}, expected an array in one piece such as {name}=(--lr 1e-6); "
        f"write it so{more}."
    )
