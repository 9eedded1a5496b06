"""Reads verl's settings: `KEY=VALUE` words, a run script with such words, or a YAML file of hydra."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlcore import ConfigError
from rlcore_import.arguments import Arguments, followed_by, of_script_or_words, read_yaml
from rlcore_import.bash.training import Launch

MAIN_PPO = Launch(
    re.compile(r"(?:verl|recipe)(?:\.\w+)+|\S*\bmain_\w+\.py"),
    re.compile(r"\bpython\S*\s(?:\S+\s+)*?-m\s+(?:verl|recipe)\.\w+"),
    re.compile(r"--config-(?:name|path|dir)\b|[+~]{0,2}[A-Za-z_][\w./@-]*="),
)
OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
REFERENCE = re.compile(r"\$\{(?:oc\.select:)?(\.*[\w.]+)(?:,\s*(.*))?\}")
"""Another setting, and the value that stands for a missing one."""
MOST_STEPS = 10


def read(words: tuple[str, ...], fixed: Mapping[str, str]) -> Arguments:
    """The arguments of a command line. ConfigError."""
    if Path(words[0]).suffix in (".yaml", ".yml"):
        return followed_by(of_yaml(Path(words[0])), of_words(words[1:]))
    return of_script_or_words(words, fixed, MAIN_PPO, of_words)


def of_words(words: Sequence[str]) -> Arguments:
    """Reads overrides; what stands before the first one names the program. ConfigError."""
    flags: dict[str, tuple[str, ...]] = {}
    entry, rest = "", iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name.startswith("--config-"):
            flags[name] = (value if equals else next(rest, ""),)
        elif override := OVERRIDE.fullmatch(word):
            flags.update(_flags(override[1], _value(override[2])))
        elif MAIN_PPO.entry.fullmatch(word):
            entry = word
        elif word.strip() and (flags or word not in ("python", "python3", "-m")):
            raise ConfigError(f"found {word!r}, expected a run script or overrides such as data.seed=1.")
    return Arguments(flags=flags, entry=entry)


def of_yaml(path: Path) -> Arguments:
    """Reads a whole configuration, as hydra writes it into `.hydra/config.yaml`. ConfigError."""
    content = read_yaml(path, "verl's tables, such as `data:`")
    flags = {name: values for key, value in content.items() for name, values in _flags(str(key), value)}
    return Arguments(flags={name: _resolved(name, values, flags) for name, values in flags.items()})


def _value(text: str) -> Any:
    """A value as hydra reads it: lists and tables in brackets, anything else as its text."""
    if text[:1] in "[{" and text:
        try:
            text = re.sub(r"(?<=\w):(?=\w)", ": ", text) if text[0] == "{" else text
            return yaml.load(text, Loader=yaml.BaseLoader)  # makes texts alone
        except yaml.YAMLError:
            return text  # with a variable of the shell inside
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _flags(name: str, value: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each setting below `name`, and its values."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flags(f"{name}.{key}", inner)
    elif not name.endswith("_target_"):
        yield name, tuple(map(_text, value)) if isinstance(value, list) and value else (_text(value),)


def _text(value: Any) -> str:
    if value is None or value in ({}, [], "None", "???"):
        return "null"
    return str(value).lower() if str(value) in ("True", "False") else str(value)


def _resolved(name: str, values: tuple[str, ...], flags: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What a reference to another setting stands for."""
    for _ in range(MOST_STEPS):
        if len(values) != 1 or not (found := REFERENCE.fullmatch(values[0])):
            break
        dots, path = len(found[1]) - len(found[1].lstrip(".")), found[1].lstrip(".")
        name = ".".join([*name.split(".")[:-dots], path]) if dots else path
        values = flags.get(name, (_text(_value(found[2] or "null")),))
    return values
