"""What rlcore knows of the flags of another framework: a TOML file, read into typed rules."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any

from rlcore import did_you_mean, flag_name

ANY = "*"
"""In a name, stands for any text."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What stands for one flag. Exactly one of `to`, `set`, `by`, `implied`, `idle` and `no` says it.

    `values` may stand beside `to` or in its place. Beside `by` or `set`, `to` is the setting that a hint
    names. The head of `slime/flags.toml` explains each field, `only` and `of` among them.
    """

    flag: str
    topic: str
    to: str = ""
    values: Mapping[str, Any] | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    implied: str = ""
    idle: str = ""
    no: str = ""
    note: str = ""
    unit: str = ""
    list: bool = False
    only: Mapping[str, Any] = field(default_factory=dict)
    otherwise: str = ""
    of: str = ""

    def __post_init__(self) -> None:
        is_plain = (self.to and not (self.by or self.set)) or self.values is not None
        ways = [is_plain, self.set, self.by, self.implied, self.idle, self.no]
        assert sum(map(bool, ways)) == 1, f"{self.flag}: one way to translate it, found {self}"

    @property
    def summary(self) -> tuple[str, str]:
        """In one line, what stands for the flag: why no setting does, with a word for it, or which."""
        for word, why in (("implied", self.implied), ("no meaning", self.idle), ("not possible", self.no)):
            if why:
                return word, why
        mapped = [value for value in (self.values or {}).values() if isinstance(value, dict)]
        names = list(dict.fromkeys([self.to] if self.to else [*self.set, *itertools.chain(*mapped)]))
        shown = ", ".join(f"`{flag_name(name).replace(ANY, 'FIELD')}`" for name in names)  # of many flags
        note = self.note or self.unit
        if not note or note.startswith(
            (shown.removesuffix("`"), f"`{flag_name(names[0])}" if names else "-")
        ):
            return "", note or shown  # the note names the setting itself
        return "", f"{shown}: {note}" if shown else note

    @property
    def setting(self) -> str:
        """The one setting that stands for the flag; empty where there is none."""
        return self.to.replace(ANY, self.flag.rpartition(".")[2].replace("-", "_"))


@dataclass(frozen=True)
class Table:
    """Every rule, by the name of its flag."""

    rules: Mapping[str, Rule]

    @classmethod
    def of(cls, framework: str, file: str = "flags.toml") -> Table:
        """The table of this package's folder FRAMEWORK."""
        text = resources.files(f"{__package__}.{framework}").joinpath(file).read_text()
        rules: dict[str, Rule] = {}
        for rule in _rules(tomllib.loads(text)):
            assert rule.flag not in rules, f"{rule.flag}: found twice"
            rules[rule.flag] = rule
        return cls(rules)

    def find(self, flag: str) -> Rule | None:
        """The rule of `--flag`, by its own name, or by the first pattern that it matches."""
        name = flag.removeprefix("--")
        for spelled in (name, name.replace("-", "_")):
            if spelled in self.rules:
                return self.rules[spelled]
        patterns = (rule for known, rule in self.rules.items() if ANY in known)
        return next((rule for rule in patterns if fnmatchcase(name, rule.flag)), None)

    def suggestion(self, flag: str) -> str:
        """` Did you mean …?` for a flag that is unknown."""
        dashes = "--" if flag.startswith("--") else ""
        return did_you_mean(flag, [dashes + name for name in self.rules if ANY not in name])


def _rules(topics: Mapping[str, Mapping[str, Any]]) -> Iterator[Rule]:
    for topic, entries in topics.items():
        for names, entry in entries.items():
            fields = {"to": entry} if isinstance(entry, str) else entry
            yield from (Rule(flag=name, topic=topic, **fields) for name in names.split())
