"""From a run script, or a list of arguments, to flags and their values.

Of bash, what run scripts are made of is read (`bash.script`). Nothing is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlcore import ConfigError
from rlcore_import.bash.script import Script, as_name
from rlcore_import.bash.training import ENTRY
from rlcore_import.bash.values import Values


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """`flags`: in the order of their first mention, each with its values. `entry`: the program, if named.

    `files`: the texts that a script writes as it runs, by the words that stand for their paths in `flags`.
    """

    flags: Mapping[str, tuple[str, ...]]
    entry: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


def of_words(words: Sequence[str]) -> Arguments:
    """Of a list of arguments; what stands before the first flag names the program. ConfigError."""
    flags: dict[str, tuple[str, ...]] = {}
    entry, current = "", ""
    for word in words:
        if re.match(r"--[A-Za-z]", word):
            current, equals, value = word.partition("=")
            flags[current] = (value,) if equals else ()
        elif current:
            flags[current] = (*flags[current], word)
        elif ENTRY.fullmatch(word):
            entry = Path(word).name
        elif word.endswith(".py"):
            raise ConfigError(
                f"{word}: found a Python program, expected the shell script that starts it, or flags such as "
                "--lr 1e-6."
            )
        elif word not in ("python", "python3", "-m"):
            raise ConfigError(
                f"found {word!r} before the first flag, expected a shell script or flags such as --lr 1e-6."
            )
    return Arguments(flags=flags, entry=entry)


def of_script(path: Path, given: Mapping[str, str]) -> Arguments:
    """Of a bash script; `given`: variables that it sets as it runs. ConfigError where it has no flags."""
    script = Script(Values(variables=dict(given), fixed=frozenset(given)))
    script.read(path)
    words = [as_name(word) if as_name(word) in script.files else word for word in script.words()]
    if not any(word.startswith("--") for word in words):
        raise ConfigError(
            f"{path}: found no flags, expected a run script with arrays of them, such as ROLLOUT_ARGS=(…)."
        )
    return replace(of_words(words), files=script.files)


def variables(given: Iterable[str]) -> dict[str, str]:
    """Of `NAME=VALUE` each. ConfigError."""
    values = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise ConfigError(f"--var: found {text!r}, expected NAME=VALUE.")
        values[name] = value
    return values
