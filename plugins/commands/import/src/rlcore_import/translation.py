"""What becomes of each flag: a word on it, and settings of rlcore."""

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import ModuleType
from typing import Any, Generic, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from rlcore import ConfigError, Kind, RunConfig, flag_name
from rlcore_import.run import TRUTHS, UNSET, Flags
from rlcore_import.table import ANY, Rule, Table

RunT = TypeVar("RunT", bound=Flags)


class FlagVerdict(StrEnum):
    """What becomes of a flag."""

    TRANSLATED = "translated"
    IMPLIED = "implied"
    IDLE = "no meaning"
    IMPOSSIBLE = "not possible"
    OPEN = "not known"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Outcome:
    """The verdict on a flag. `text`: why, or what it became.

    `settings`: of a translated one; None in place of one that another setting replaces.
    """

    verdict: FlagVerdict
    text: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def variables_of(values: Sequence[str]) -> list[str]:
    """The shell variables that the values of a flag name, once each; not those that a program is handed."""
    text = " ".join(value for value in values if "$(" not in value)
    return list(dict.fromkeys(re.findall(r"\$\{?([A-Za-z_]\w*)", text)))


def implied(why: str) -> Outcome:
    """Nothing is to be set."""
    return Outcome(FlagVerdict.IMPLIED, why)


def idle(why: str) -> Outcome:
    """The flag has no meaning in rlcore."""
    return Outcome(FlagVerdict.IDLE, why)


def impossible(why: str) -> Outcome:
    """rlcore has nothing of the kind, or not by a flag."""
    return Outcome(FlagVerdict.IMPOSSIBLE, why)


Computed = Callable[[RunT, str], Outcome | Mapping[str, Any]]
"""Takes a run and the name of a flag, and gives its settings or the verdict. Related flags share one."""
OFF = ("null", "none", "0.0", *(text for text in TRUTHS if not TRUTHS[text]))
"""Values with which what rlcore lacks is not asked for."""


def functions_of(*modules: ModuleType) -> Mapping[str, Computed[Any]]:
    """The public functions of `modules`, by their names: what a table means by `by`."""
    return {
        name: function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


@dataclass(frozen=True)
class Row:
    """One flag as it was given, and what became of it."""

    flag: str
    values: tuple[str, ...]
    outcome: Outcome


@dataclass
class Translation(Generic[RunT]):
    """The settings of a run, and a row for each flag. `computed`: by the names of the table's `by`.

    `files`: what the settings name and is to be written beside them.
    """

    table: Table
    computed: Mapping[str, Computed[RunT]]
    run: RunT
    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    def add(self, flag: str, values: tuple[str, ...]) -> None:
        """Translate one flag."""
        rule = self.table.find(flag)
        if rule is None:
            outcome = Outcome(FlagVerdict.UNKNOWN, self.table.suggestion(flag).strip())
        else:
            outcome = self._outcome(rule, flag, values)
        self.append(Row(flag, values, outcome))

    def append(self, row: Row) -> None:
        """Take up what became of one flag."""
        _check(row.flag, row.values, row.outcome.settings)
        self.rows.append(row)
        self._merge(row.outcome.settings)

    def untouched(self) -> dict[str, Any]:
        """The settings that no flag gave: the framework's own defaults, where rlcore's differ."""
        flagged = {name for row in self.rows for name in row.outcome.settings}
        return {name: value for name, value in self.settings.items() if name not in flagged}

    def _merge(self, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            if value is None:  # another setting takes its place
                self.settings.pop(name, None)
                continue
            before = self.settings.get(name)
            if isinstance(before, list) and isinstance(value, list):
                value = [*before, *(item for item in value if item not in before)]
            self.settings[name] = value

    def _outcome(self, rule: Rule, flag: str, values: tuple[str, ...]) -> Outcome:
        if values == UNSET or (rule.no and len(values) == 1 and values[0].lower() in OFF):
            return implied("not set" if values == UNSET else "rlcore does not do it")
        if doubts := self.run.doubts(rule.only):
            return _open(flag, doubts)
        if not self.run.holds(rule.only):
            return implied(rule.otherwise)
        for verdict, why in (
            (FlagVerdict.IMPLIED, rule.implied),
            (FlagVerdict.IDLE, rule.idle),
            (FlagVerdict.IMPOSSIBLE, rule.no),
        ):
            if why:
                return Outcome(verdict, why)
        if any("$" in value for value in values):
            return _open(flag, values)
        if rule.by:
            computed = self.computed[rule.by](self.run, flag.removeprefix("--"))
            return computed if isinstance(computed, Outcome) else translated(computed)
        if rule.set:
            return translated(rule.set)
        if rule.values is not None:
            return _mapped(rule, values)
        to = rule.to.replace(ANY, re.split(r"[.]|^--", flag)[-1].replace("-", "_"))
        if rule.of:
            return translated({to: getattr(self.run, rule.of)})
        return translated(
            {to: [literal(value) for value in values] if rule.list else self._typed(flag, to, values)}
        )

    def _typed(self, flag: str, name: str, values: tuple[str, ...]) -> Any:
        """The value in the type of the setting `name`. ConfigError for a text that is none of that type."""
        plain, text = single(values), values[0] if values else "true"
        table, field_name = name.partition(".")[0], name.rpartition(".")[2]
        kinds: list[Any] = [bool] if isinstance(_OF_RUN.get(name), bool) else []
        for kind in (kind for kind in Kind if kind == table and len(values) < 2):
            fields = (config.model_fields.get(field_name) for _, config in self.run.registry.configs(kind))
            kinds += [field.annotation for field in fields if field is not None]
        kinds = [kind for kind in kinds if {*(get_args(kind) or (kind,))} <= SCALARS]
        for at, kind in enumerate(kinds):
            try:
                value = TypeAdapter(kind).validate_python(text)
            except ValidationError as error:
                if at == len(kinds) - 1:
                    raise _wrong(flag, values, error) from None
            else:
                return value if isinstance(value, bool) else plain
        return plain


_OF_RUN = RunConfig().values()
SCALARS = {bool, int, float, type(None)}
"""The types that a text can be of or not."""


def _check(flag: str, values: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    """ConfigError for a value that the run's own settings do not take. Parts check theirs in rlcore train."""
    for name, value in settings.items():
        if name in _OF_RUN and value is not None:
            try:
                RunConfig.of(**{name: value})
            except ValidationError as error:
                raise _wrong(flag, values, error) from None


def _wrong(flag: str, values: tuple[str, ...], error: ValidationError) -> ConfigError:
    why = error.errors()[0]["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return ConfigError(f"{flag}: found {' '.join(values)!r}, expected {why}.")


def _open(flag: str, values: Sequence[str]) -> Outcome:
    """The `values`, of the flag or of one that it depends on, are not known."""
    names = " and ".join(variables_of(values))
    why = f"depends on {names}" if names else f"a program computes it; give {flag} behind the file"
    return Outcome(FlagVerdict.OPEN, why)


def _mapped(rule: Rule, values: tuple[str, ...]) -> Outcome:
    assert rule.values is not None
    value = values[0] if values else "true"
    if value not in rule.values and value.lower() in TRUTHS:
        value = str(TRUTHS[value.lower()]).lower()
    if value not in rule.values or rule.values[value] == "":
        why = f"; {rule.note}" if rule.note else ""
        taken = " or ".join(name for name, ours in rule.values.items() if ours != "")
        return impossible(f"found {value}, expected {taken}{why}")
    ours = rule.values[value]
    if isinstance(ours, Mapping):
        return translated(ours) if ours else implied(rule.note or "rlcore does so anyway")
    return translated({rule.to: [ours] if rule.list else ours})


def translated(settings: Mapping[str, Any], remark: str = "") -> Outcome:
    """The settings stand for the flag; `remark`: what differs."""
    present = {name: value for name, value in settings.items() if value is not None}
    texts = [f"{flag_name(name)} {_text(value)}".rstrip() for name, value in present.items()]
    text = ", ".join(texts)
    return Outcome(FlagVerdict.TRANSLATED, f"{text} ({remark})" if remark else text, settings)


def _text(value: Any) -> str:
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
