"""From a run script, or a list of arguments, to flags and their values.

Of bash, what run scripts are made of is read (`bash.script`). Nothing is executed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlcore import ConfigError
from rlcore_import.bash.script import Script, as_name
from rlcore_import.bash.training import DASHES, TRAIN_PY, Launch, Training
from rlcore_import.bash.values import Values


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """`flags`: in the order of their first mention, each with its values. `entry`: the program, if named.

    `files`: the texts that a script writes as it runs, by the words that stand for their paths in `flags`.
    `environment`: the variables that the program gets, as far as the script says.
    """

    flags: Mapping[str, tuple[str, ...]]
    entry: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def of_words(words: Sequence[str]) -> Arguments:
    """Reads a list of arguments; what stands before the first flag names the program. ConfigError."""
    flags: dict[str, tuple[str, ...]] = {}
    entry, current = "", ""
    for word in words:
        if DASHES.match(word):
            current, equals, value = word.partition("=")
            flags[current] = (value,) if equals else ()
        elif current:
            flags[current] = (*flags[current], word)
        elif TRAIN_PY.entry.fullmatch(word):
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


Words = Callable[[Sequence[str]], Arguments]
"""Reads the arguments of a command, as `of_words` those of slime."""


def of_script(
    path: Path, fixed: Mapping[str, str], launch: Launch = TRAIN_PY, read: Words = of_words
) -> Arguments:
    """Reads a bash script; `fixed`: variables that it cannot set. ConfigError where it has no flags."""
    script = Script(Values(variables=dict(fixed), fixed=frozenset(fixed)), Training(launch))
    script.read(path)
    words = [as_name(word) if as_name(word) in script.files else word for word in script.words()]
    if not any(map(launch.flag.match, words)):
        raise ConfigError(
            f"{path}: found no flags, expected a run script with arrays of them, such as ROLLOUT_ARGS=(…)."
        )
    return replace(read(words), files=script.files, environment=script.environment)


def of_script_or_words(
    words: tuple[str, ...], fixed: Mapping[str, str], launch: Launch = TRAIN_PY, read: Words = of_words
) -> Arguments:
    """Reads a script and the flags behind it, or flags alone. ConfigError."""
    first = Path(words[0])
    if launch.flag.match(words[0]) or first.suffix == ".py" or words[0].startswith("python"):
        arguments = read(words)
        if not arguments.flags:
            raise ConfigError(f"{words[0]}: found no flags, expected them or the shell script that has them.")
        return arguments
    return followed_by(of_script(first, fixed, launch, read), read(words[1:]))


def followed_by(first: Arguments, more: Arguments) -> Arguments:
    """Flags, and those behind them, which override them."""
    return replace(first, flags={**first.flags, **more.flags}, entry=more.entry or first.entry)


def variables(pairs: Iterable[str]) -> dict[str, str]:
    """Reads one variable from each `NAME=VALUE`. ConfigError."""
    values = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise ConfigError(f"--var: found {text!r}, expected NAME=VALUE.")
        values[name] = value
    return values


def read_yaml(path: Path, expected: str) -> Mapping[Any, Any]:
    """The settings in a file. `expected`: what they are, for the ConfigError where there are none."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: found no YAML ({error}).".replace("\n", " ")) from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: found no settings, expected {expected}.")
    return content
