"""What becomes of each flag: a word on it, and settings of rlcore."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from rlcore import ConfigError, RunConfig, flag_name
from rlcore_import.table import Rule, Table

RunT = TypeVar("RunT")


class FlagVerdict(StrEnum):
    """What becomes of a flag."""

    TRANSLATED = "translated"
    IMPLIED = "implied"
    IDLE = "no meaning"
    IMPOSSIBLE = "not possible"
    OPEN = "not known"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Said:
    """The verdict on a flag. `text`: why, or what it became.

    `settings`: of a translated one; None in place of one that another setting replaces.
    """

    verdict: FlagVerdict
    text: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def variables_of(values: Sequence[str]) -> list[str]:
    """The shell variables that the values of a flag name, once each; not those that a program is handed."""
    known = " ".join(value for value in values if "$(" not in value)
    return list(dict.fromkeys(re.findall(r"\$\{?([A-Za-z_]\w*)", known)))


def implied(why: str) -> Said:
    """Nothing is to be set."""
    return Said(FlagVerdict.IMPLIED, why)


def idle(why: str) -> Said:
    """The flag has no meaning in rlcore."""
    return Said(FlagVerdict.IDLE, why)


def impossible(why: str) -> Said:
    """rlcore has nothing of the kind, or not by a flag."""
    return Said(FlagVerdict.IMPOSSIBLE, why)


Computed = Callable[[RunT, str], Said | Mapping[str, Any]]
"""Of a run and the name of a flag: its settings, or the verdict. Flags that belong together share one."""


@dataclass(frozen=True)
class Row:
    """One flag as it was given, and what became of it."""

    flag: str
    values: tuple[str, ...]
    said: Said


@dataclass
class Translation(Generic[RunT]):
    """The settings of a run, and a row for each flag. `computed`: by the names of the table's `by`."""

    table: Table
    computed: Mapping[str, Computed[RunT]]
    run: RunT
    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def add(self, flag: str, values: tuple[str, ...]) -> None:
        """Translate one flag."""
        rule = self.table.find(flag)
        said = (
            Said(FlagVerdict.UNKNOWN, self.table.near(flag).strip())
            if rule is None
            else self._say(rule, flag, values)
        )
        _check(flag, values, said.settings)
        self.rows.append(Row(flag, values, said))
        self._merge(said.settings)

    def untouched(self) -> dict[str, Any]:
        """The settings that no flag gave: the framework's own defaults, where rlcore's differ."""
        given = {name for row in self.rows for name in row.said.settings}
        return {name: value for name, value in self.settings.items() if name not in given}

    def _merge(self, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            if value is None:  # another setting takes its place
                self.settings.pop(name, None)
                continue
            known = self.settings.get(name)
            if isinstance(known, list) and isinstance(value, list):
                value = [*known, *(item for item in value if item not in known)]
            self.settings[name] = value

    def _say(self, rule: Rule, flag: str, values: tuple[str, ...]) -> Said:
        for verdict, why in (
            (FlagVerdict.IMPLIED, rule.implied),
            (FlagVerdict.IDLE, rule.idle),
            (FlagVerdict.IMPOSSIBLE, rule.no),
        ):
            if why:
                return Said(verdict, why)
        if any("$" in value for value in values):
            names = " and ".join(variables_of(values))
            why = f"depends on {names}" if names else "a program prints its value; write it there"
            return Said(FlagVerdict.OPEN, why)
        if rule.by:
            computed = self.computed[rule.by](self.run, flag.removeprefix("--"))
            return computed if isinstance(computed, Said) else _translated(computed)
        if rule.set:
            return _translated(rule.set)
        if rule.values is not None:
            return _mapped(rule, values)
        return _translated({rule.to: [literal(value) for value in values] if rule.list else single(values)})


_OF_RUN = RunConfig().values()


def _check(flag: str, values: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    """ConfigError for a value that the run's own settings do not take. Parts check theirs in rlcore train."""
    for name, value in settings.items():
        if name in _OF_RUN and value is not None:
            try:
                RunConfig.of(**{name: value})
            except ValidationError as error:
                said = error.errors()[0]["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
                raise ConfigError(f"{flag}: found {' '.join(values)!r}, expected {said}.") from None


def _mapped(rule: Rule, values: tuple[str, ...]) -> Said:
    assert rule.values is not None
    value = values[0] if values else "true"
    if value not in rule.values or rule.values[value] == "":
        why = f"; {rule.note}" if rule.note else ""
        return impossible(f"found {value}, expected {' or '.join(known for known in rule.values)}{why}")
    ours = rule.values[value]
    if isinstance(ours, Mapping):
        return _translated(ours) if ours else implied(rule.note or "rlcore does so anyway")
    return _translated({rule.to: [ours] if rule.list else ours})


def _translated(settings: Mapping[str, Any]) -> Said:
    given = {name: value for name, value in settings.items() if value is not None}
    shown = [f"{flag_name(name)} {_shown(value)}".rstrip() for name, value in given.items()]
    return Said(FlagVerdict.TRANSLATED, ", ".join(shown), settings)


def _shown(value: Any) -> str:
    if value is True:
        return ""
    items = value if isinstance(value, list) else [value]
    return " ".join(item if isinstance(item, str) else json.dumps(item) for item in items)


def single(values: tuple[str, ...]) -> Any:
    """One value as TOML has it, several as a list; a flag without any means true."""
    if not values:
        return True
    return literal(values[0]) if len(values) == 1 else [literal(value) for value in values]


def literal(text: str) -> Any:
    """A number, true or false, else the text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    try:
        return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text) else text
    except ValueError:
        return text
