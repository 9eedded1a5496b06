"""The evaluations of a run: `--eval NAME=PATH`, with settings of their own in `[eval.NAME]`."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rlcore.api.config import Config
from rlcore.api.errors import ConfigError
from rlcore.api.part import Part, RewardPart
from rlcore.api.part_config import DataConfig
from rlcore.api.records import NAME, Kind
from rlcore.compose import lookup
from rlcore.compose.lookup import DATA, TASK
from rlcore.config import layers
from rlcore.config.layers import Layer
from rlcore.plugins.registry import Entry, Registry

EVAL = "eval"
_SOURCE = re.compile(rf"{EVAL}\.(?P<name>[^.]+)\.({DATA}|{TASK})")

PARTS = (Kind.REWARD, Kind.GENERATOR)
"""The parts of the run that an evaluation may replace."""


class EvalConfig(Config):
    """How one set is evaluated. By default greedily, with one answer to each prompt."""

    samples: int = Field(1, ge=1, le=10_000, description="answers to each prompt")
    temperature: float = Field(0.0, ge=0, le=100, description="sampling temperature; 0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="keep the smallest set of tokens of this probability")
    top_k: int = Field(0, ge=0, description="keep the k most probable tokens; 0 keeps all")
    min_p: float = Field(0.0, ge=0, lt=1, description="drop tokens below this share of the most probable one")
    max_tokens: int | None = Field(
        None, ge=1, description="a longer response is truncated; none: --max-response-tokens"
    )
    prompts: int | None = Field(
        None,
        ge=1,
        description="at most this many prompts; none: in a run as many as --eval-prompts, in rlcore eval all",
    )
    score_by: Literal["auto", "exact_match", "reward"] = Field(
        "auto", description="what an answer is judged by; auto: the reward, if there is one"
    )
    solved_at: float = Field(1.0, description="an answer with at least this score counts in pass@k")


def flat_source(source: Part, prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """What chooses `source`, and its settings, by names that begin with `prefix`. `data` is its path."""
    settings = source.flat(f"{prefix}source")
    if isinstance(source.config, DataConfig):
        return {f"{prefix}{DATA}": settings.pop(f"{prefix}source.path")}, settings
    return {f"{prefix}{TASK}": source.name}, settings


@dataclass(frozen=True, kw_only=True)
class EvalSet:
    """One evaluation, resolved. `reward`, `generator`: its own; None: it uses those of the run."""

    name: str
    config: EvalConfig
    source: Part
    reward: Part | None = None
    generator: Part | None = None

    def judged_by(self, of_run: tuple[RewardPart, ...]) -> tuple[RewardPart, ...]:
        """The rewards that judge it: its own, or those of the run."""
        return of_run if self.reward is None else (RewardPart(**vars(self.reward)),)

    def flat(self) -> dict[str, Any]:
        """Its settings by their dotted names."""
        table = f"{EVAL}.{self.name}"
        flat, source = flat_source(self.source, f"{table}.")
        flat |= {f"{table}.{key}": value for key, value in self.config.model_dump(mode="json").items()}
        for kind in PARTS:
            part: Part | None = getattr(self, kind)
            if part is not None:
                flat |= {f"{table}.{kind}": part.name, **part.flat(f"{table}.{kind}")}
        return flat | source


@dataclass(frozen=True, kw_only=True)
class EvalChoice:
    """One evaluation of a selection: its parts are chosen, its settings not yet read."""

    name: str
    source: Entry
    parts: Mapping[Kind, Entry]

    @property
    def table(self) -> str:
        """`eval.NAME`."""
        return f"{EVAL}.{self.name}"

    def tables(self) -> Iterator[tuple[str, Entry]]:
        """Its parts, each with the table that its settings stand in."""
        yield f"{self.table}.source", self.source
        for kind, entry in self.parts.items():
            yield f"{self.table}.{kind}", entry

    def choices(self) -> tuple[str, ...]:
        """The dotted names of the settings that choose its parts."""
        return tuple(f"{self.table}.{key}" for key in (DATA, TASK, *PARTS))


def without_short_forms(layer: Layer, registry: Registry) -> Layer:
    """`layer` with the short forms written out.

    `--eval NAME=VALUE`, and `eval.NAME = VALUE` in a file, become `eval.NAME.data`, or `eval.NAME.task` where
    VALUE is a task. Raises `ConfigError`, also where two evaluations have one name.
    """
    values: dict[str, Any] = {}
    written_as = dict(layer.written_as)
    sources: dict[str, tuple[str, Any]] = {}
    for key, value in layer.values.items():
        for setting, where in _plain(key, value, layer, registry):
            values[setting] = where
            if setting != key:
                written_as[setting] = key
            if (match := _SOURCE.fullmatch(setting)) is None:
                continue
            first = sources.setdefault(match["name"], (setting, where))
            if first != (setting, where):
                both = f"{layers.shown(first[1])} and {layers.shown(where)}"
                raise ConfigError(f"{layer.at(key)}: {both} are both named {match['name']!r}; rename one.")
    return replace(layer, values=values, written_as=written_as)


def _plain(key: str, value: Any, layer: Layer, registry: Registry) -> Iterator[tuple[str, Any]]:
    """The settings that `key` of `layer` stands for."""
    if key == EVAL:
        for item in value if isinstance(value, list | tuple) else [value]:
            name, _, where = str(item).partition("=")
            if not (where and NAME.fullmatch(name)):
                raise ConfigError(
                    f"{layer.at(key)}: found {layers.shown(item)}, expected NAME=PATH or NAME=TASK, with a "
                    "name of lower-case letters, digits and underscores."
                )
            yield f"{EVAL}.{name}.{_kind_of(where, registry)}", where
    elif key.startswith(f"{EVAL}.") and key.count(".") == 1:
        if not isinstance(value, str):
            raise ConfigError(f"{layer.at(key)}: found {layers.shown(value)}, expected a path or a task.")
        yield f"{key}.{_kind_of(value, registry)}", value
    else:
        yield key, value


def _kind_of(where: str, registry: Registry) -> str:
    # A file that has the name of a task is meant, since the user has put it there.
    if Path(where).exists():
        return DATA
    # A bare word is a misspelt task rather than a file that is missing.
    return TASK if where in registry.names(Kind.SOURCE) or NAME.fullmatch(where) else DATA


def choose(registry: Registry, stack: Sequence[Layer]) -> tuple[EvalChoice, ...]:
    """The evaluations of the layers (`without_short_forms`, weakest first), in the order of their names.

    Raises `UserError` for one without data, or with an unknown part.
    """
    settings, choices = layers.merge(stack), []
    for name in _names(stack):
        source = lookup.strongest(stack, *_source_keys(name))
        if source is None:
            first = next(key for key in settings if key.startswith(f"{EVAL}.{name}."))
            at = settings[first].layer.at(first)
            raise ConfigError(f"{at}: the evaluation {name!r} has no data; add --eval {name}=PATH.")
        key, setting = source
        if key.endswith(f".{DATA}"):
            lookup.text_of(key, setting)  # one file: a set is no mix
            entry = lookup.find_data(registry, key, setting)
        else:
            entry = lookup.find_task(registry, key, setting, "name a file with --eval NAME=PATH")
        parts = {
            kind: lookup.find_entry(registry, kind, full, settings[full])
            for kind in PARTS
            if (full := f"{EVAL}.{name}.{kind}") in settings
        }
        choices.append(EvalChoice(name=name, source=entry, parts=parts))
    return tuple(choices)


def _names(stack: Iterable[Layer]) -> list[str]:
    keys = [key.split(".") for layer in stack for key in layer.values]
    settings = [key for key in keys if key[0] == EVAL and len(key) > 2]
    # `--eval.a.samples 8` may stand before `--eval a=PATH`; the flags that make the sets give the order.
    makers = [key for key in settings if key[2] in (DATA, TASK)]
    return list(dict.fromkeys(key[1] for key in (*makers, *settings)))


def _source_keys(name: str) -> tuple[str, str]:
    """The two settings that say what the evaluation asks; the strongest layer that has either decides."""
    return f"{EVAL}.{name}.{TASK}", f"{EVAL}.{name}.{DATA}"


def lost_tables(layer: Layer, stack: Sequence[Layer]) -> list[str]:
    """Prefixes of the settings in `layer` that are for a part which a stronger layer has replaced."""
    merged, gone = layers.merge(stack), []
    for name in _names([layer]):
        table = f"{EVAL}.{name}"
        if lookup.is_replaced(layer, stack, *_source_keys(name)):
            gone.append(f"{table}.source.")
        for kind in PARTS:
            key = f"{table}.{kind}"
            if key in layer.values and layer.values[key] != merged[key].value:
                gone.append(f"{key}.")
    return gone
