"""Which parts a run is made of, before any of their settings is read.

The selection may be incomplete (`rlcore train --algo grpo --help`): it still knows the flags of what is
chosen so far.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlcore.config import evals, layers, models
from rlcore.config.base import Config
from rlcore.config.evals import DATA_SOURCE, EVAL, EvalChoice, EvalConfig
from rlcore.config.layers import Layer, Setting, flag_name
from rlcore.config.locations import check_locations
from rlcore.config.models import Found
from rlcore.config.run import RunConfig
from rlcore.config.toml import NONE
from rlcore.errors import ConfigError, did_you_mean
from rlcore.plugins.records import Algorithm, Kind, Source
from rlcore.plugins.registry import (
    LIST_KINDS,
    OPTIONAL_KINDS,
    PART_KINDS,
    REQUIRED_LISTS,
    Entry,
    Registry,
)
from rlcore.trains_on import TrainsOn

PASS_THROUGH = ("megatron", "sglang")
"""Tables whose fields are the engines' own."""

CHOICES: Mapping[str, str] = {
    "algo": "recipe: parts and vetted defaults",
    "model": "model: a family (its tiny preset), a Hugging Face directory or a hub id",
    "task": "procedural task to train on",
    "data": "prompts to train on: a .jsonl or .parquet file; of several, NAME=PATH:WEIGHT each",
    EVAL: "also evaluate on NAME=PATH, or NAME=TASK",
    "advantage": "advantage estimator",
    "loss": "loss",
    "value_loss": "loss of the critic",
    "correction": "weights for off-policy tokens",
    "generator": "rollout generator",
    "reward": "reward, with its weight in the sum where it is not 1: NAME or NAME=WEIGHT",
    "filter": "filter of scored groups",
    "engine": "generation engine",
}
"""The flags that choose a part, with their help."""

KINDS: Mapping[str, Kind] = {
    "algo": Kind.ALGORITHM,
    "model": Kind.MODEL,
    "task": Kind.SOURCE,
    **{kind.value: kind for kind in PART_KINDS},
}
"""Flag → the kind whose names it takes."""

REPEATED = (*LIST_KINDS, EVAL, "data")
"""Choices that may be given several times."""

OF_ROLLOUTS = (Kind.ADVANTAGE, Kind.VALUE_LOSS, Kind.CORRECTION, Kind.REWARD, Kind.FILTER)
"""Kinds of which there is none where the responses are given."""

DEFAULT_TASK = "copy"
DEFAULT_GENERATOR = "single_turn"
_ONE = [kind for kind in PART_KINDS if kind not in LIST_KINDS]
_SAMPLED = TrainsOn.ROLLOUTS
_GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


def default_engine() -> str:
    """`sglang` where there is a GPU, else `local`."""
    return "sglang" if any(device.exists() for device in _GPU_DEVICES) else "local"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What is chosen. `layers`: every layer of settings, weakest first; `entries`: one a kind.

    `lists`: of each kind that a run takes any number of, those chosen, in order; `weights`: of each reward.
    `evals`: the evaluations beside the held-out sets of the source.
    """

    registry: Registry
    layers: tuple[Layer, ...]
    entries: Mapping[Kind, Entry]
    lists: Mapping[Kind, tuple[Entry, ...]]
    weights: Mapping[str, float]
    model: Found | None
    evals: tuple[EvalChoice, ...] = ()

    @property
    def trains_on(self) -> TrainsOn:
        """Where the responses come from."""
        recipe = self.entries.get(Kind.ALGORITHM)
        return recipe.record.trains_on if recipe and isinstance(recipe.record, Algorithm) else _SAMPLED

    def require_complete(self) -> None:
        """Raises `ConfigError` where a part is still to be chosen."""
        idle = () if self.trains_on is _SAMPLED else OF_ROLLOUTS
        for key, kind in KINDS.items():
            free = kind in OPTIONAL_KINDS or (kind in LIST_KINDS and kind not in REQUIRED_LISTS)
            if free or kind in idle or kind in self.entries or self.lists.get(kind):
                continue
            offer, note = self.registry.offer(kind), self.registry.broken_note()
            raise ConfigError(f"{flag_name(key)} is missing: nothing chooses it, expected {offer}.{note}")

    def chosen(self, key: str) -> str | None:
        """The present choice behind the flag `key`, for the help; None: there is none."""
        if key == EVAL:
            return " ".join(one.name for one in self.evals) or None
        if key in LIST_KINDS:
            return " ".join(self._names(KINDS[key])) or None
        source = self.entries.get(Kind.SOURCE)
        if key == "data" or (key == "task" and source and source.record.name == DATA_SOURCE):
            return None
        entry = self.entries.get(KINDS[key])
        return entry.record.name if entry else None

    def tables(self) -> Iterator[tuple[str, Entry]]:
        """Table name and entry of every selected part that has a config."""
        for kind in (Kind.MODEL, *_ONE, Kind.SOURCE):
            if kind in self.entries:
                yield kind.value, self.entries[kind]
        for kind, entries in self.lists.items():
            yield from ((f"{kind}.{entry.record.name}", entry) for entry in entries)
        for one in self.evals:
            yield from one.tables()

    def configs(self) -> Iterator[tuple[str, type[Config], str]]:
        """Table name, config class and heading of everything beside the run that has settings."""
        for table, entry in self.tables():
            name = entry.record.name
            yield (
                table,
                entry.config,
                table.replace(".", ": ") + ("" if "." in table else f": {name}"),
            )
        for one in self.evals:
            yield one.table, EvalConfig, f"{EVAL}: {one.name}"

    def settings(self) -> dict[str, Setting]:
        """The merged settings. Raises `ConfigError` for a name that nothing reads."""
        known = set(self.known())
        for layer in self.layers:
            for name in layer.values:
                if name not in known and name.partition(".")[0] not in PASS_THROUGH:
                    raise ConfigError(self.unknown(name, layer))
        merged = layers.merge(self.layers)
        for hidden, choice in self.chosen_otherwise().items():
            merged[hidden] = merged[choice]
        return merged

    def chosen_otherwise(self) -> dict[str, str]:
        """Field without a flag → the choice that says it: the `path` of the source `file`, by `data`."""
        sources = {f"{Kind.SOURCE}.path": ("data", self.entries.get(Kind.SOURCE))}
        sources |= {f"{one.table}.source.path": (f"{one.table}.data", one.source) for one in self.evals}
        return {
            hidden: choice
            for hidden, (choice, entry) in sources.items()
            if entry is not None and entry.record.name == DATA_SOURCE
        }

    def known(self) -> list[str]:
        """Every name that something reads, pass-through fields aside."""
        names = [*RunConfig.model_fields, *CHOICES]
        names += itertools.chain.from_iterable(one.choices() for one in self.evals)
        for table, config, _ in self.configs():
            names += [f"{table}.{key}" for key in config.model_fields]
        hidden = self.chosen_otherwise()
        return [name for name in names if name not in hidden]

    def unknown(self, name: str, layer: Layer) -> str:
        """The sentence for a name that nothing reads."""
        if name in self.chosen_otherwise():
            return f"{layer.at(name)} is what {layer.at(self.chosen_otherwise()[name])} says; leave it out."
        owner = self._unselected_owner(name)
        if owner:
            return f"{layer.at(name)} {owner}"
        shown = str if layer.label else flag_name
        near = did_you_mean(shown(name), map(shown, self.known()))
        return f"{layer.at(name)} is unknown.{near}{self.registry.broken_note()}"

    def _unselected_owner(self, name: str) -> str | None:
        table, _, key = name.rpartition(".")
        if name.startswith(f"{EVAL}.") and name.split(".")[1] not in {one.name for one in self.evals}:
            wanted = name.split(".")[1]
            return f"belongs to the evaluation {wanted!r}, which there is not; add --eval {wanted}=PATH."
        for kind in LIST_KINDS:
            wanted = table.removeprefix(f"{kind}.")
            if wanted != table and wanted in set(self.registry.names(kind)) - set(self._names(kind)):
                return f"belongs to {kind} {wanted!r}, which is not chosen; add --{kind} {wanted}."
        for kind in (Kind.MODEL, *_ONE, Kind.SOURCE):
            if table != kind:
                continue
            owners = [e.record.name for e in self.registry.entries(kind) if key in e.config.model_fields]
            if owners:
                chosen = f"{self.entries[kind].record.name!r} is" if kind in self.entries else "none is"
                return f"belongs to {kind} {' or '.join(map(repr, owners))}, but {chosen} chosen."
        return None

    def _names(self, kind: Kind) -> list[str]:
        return [entry.record.name for entry in self.lists[kind]]


def select(registry: Registry, file: Layer | None, flags: Layer) -> Selection:
    """The selection that a file and flags make. Raises `UserError` for a name that does not exist."""
    given = tuple(evals.expanded(listed(layer), registry) for layer in (file, flags) if layer is not None)
    chosen = layers.merge(given)
    entries: dict[Kind, Entry] = {}
    model = None
    if "algo" in chosen:
        entries[Kind.ALGORITHM] = find_entry(registry, Kind.ALGORITHM, "algo", chosen["algo"])
    if "model" in chosen:
        model = models.find(text_of("model", chosen["model"]), registry, chosen["model"].layer.at("model"))
        entries[Kind.MODEL] = model.entry
    source = _source(registry, given)
    if source:
        entries[Kind.SOURCE] = source
    # What a preset suggests fits its tiny model, and says nothing of a model that the user brings.
    is_preset = model is not None and model.path is None
    suggesting = (Kind.MODEL, Kind.SOURCE) if is_preset else (Kind.SOURCE,)
    weaker = [_suggestions(entries[kind]) for kind in suggesting if kind in entries]
    if Kind.ALGORITHM in entries:
        weaker = [_scaled(layer, entries[Kind.ALGORITHM]) for layer in weaker]
        weaker.append(_recipe_layer(entries[Kind.ALGORITHM]))
    choices = layers.merge([default_choices(registry), *weaker, *given])
    recipe = entries.get(Kind.ALGORITHM)
    if recipe and isinstance(recipe.record, Algorithm) and recipe.record.trains_on is not _SAMPLED:
        _refuse_idle(recipe.record, chosen)
        # What a task suggests is for rollouts.
        choices = {key: setting for key, setting in choices.items() if key not in OF_ROLLOUTS}
    entries |= {
        kind: find_entry(registry, kind, kind.value, choices[kind.value])
        for kind in _ONE
        if kind.value in choices and not (kind in OPTIONAL_KINDS and choices[kind.value].value == NONE)
    }
    lists = {kind: several(registry, kind, choices.get(kind.value)) for kind in LIST_KINDS}
    weights = reward_weights(choices.get(Kind.REWARD.value))
    parts = [*(entries[kind] for kind in _ONE if kind in entries), *itertools.chain(*lists.values())]
    ordered = (*map(_suggestions, parts), *weaker, *given)
    return Selection(
        registry=registry,
        layers=tuple(_without_strangers(layer, choices, given) for layer in ordered),
        entries=entries,
        lists=lists,
        weights=weights,
        model=model,
        evals=evals.choose(registry, given),
    )


def _refuse_idle(recipe: Algorithm, chosen: Mapping[str, Setting]) -> None:
    """A part that works on rollouts would do nothing where the responses are given.

    The default generator stays: it answers where the policy is evaluated.
    """
    for kind in (*OF_ROLLOUTS, Kind.GENERATOR):
        setting = chosen.get(kind.value)
        if setting is not None and setting.value not in ([], (), NONE):
            found = layers.shown(setting.value)
            raise ConfigError(
                f"{setting.layer.at(kind.value)}: found {found}, but --algo {recipe.name} trains on "
                f"{recipe.trains_on}, which no {kind.value.replace('_', ' ')} works on; leave it out."
            )


def default_choices(registry: Registry) -> Layer:
    """The choices that need no flag; one whose plugin is not there is left for the user to make."""
    wanted = {Kind.GENERATOR: DEFAULT_GENERATOR, Kind.ENGINE: default_engine()}
    there = {kind.value: name for kind, name in wanted.items() if name in registry.names(kind)}
    return Layer(label="default", values=there)


def text_of(key: str, setting: Setting) -> str:
    """The value of `key`. Raises `ConfigError` where it is no text."""
    if not isinstance(setting.value, str):
        raise ConfigError(f"{setting.layer.at(key)}: found {setting.value!r}, expected a text.")
    return setting.value


def find_entry(registry: Registry, kind: Kind, key: str, setting: Setting) -> Entry:
    """What the choice `key` names. Raises `UserError`."""
    return registry.find(kind, text_of(key, setting), setting.layer.at(key))


def _source_choice(given: tuple[Layer, ...]) -> tuple[str, Setting] | None:
    """`task` or `data`, whichever the strongest layer has; None: neither was given."""
    for layer in reversed(given):
        if "task" in layer.values and "data" in layer.values:
            raise ConfigError(f"{layer.at('task')} and {layer.at('data')} exclude each other; leave one out.")
        for key in ("task", "data"):
            if key in layer.values:
                return key, Setting(value=layer.values[key], layer=layer)
    return None


def _source(registry: Registry, given: tuple[Layer, ...]) -> Entry | None:
    choice = _source_choice(given)
    if choice is None:
        known = DEFAULT_TASK in registry.names(Kind.SOURCE)
        return registry.find(Kind.SOURCE, DEFAULT_TASK, "the default task") if known else None
    key, setting = choice
    at = setting.layer.at(key)
    if key == "data":
        check_locations(setting.value, at)
        return registry.find(Kind.SOURCE, DATA_SOURCE, at)
    entry = find_entry(registry, Kind.SOURCE, key, setting)
    if isinstance(entry.record, Source) and not entry.record.task:
        raise ConfigError(f"{at}: {entry.record.name!r} is no task; use --data PATH.")
    return entry


def several(registry: Registry, kind: Kind, setting: Setting | None) -> tuple[Entry, ...]:
    """The entries of a list of names. Raises `UserError`."""
    if setting is None:
        return ()
    at = setting.layer.at(kind.value)
    names = setting.value
    if not (isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)):
        raise ConfigError(f"{at}: found {names!r}, expected a list of names.")
    found = [_bare(kind, name) for name in names]
    if len(set(found)) != len(found):
        raise ConfigError(f"{at}: found {', '.join(names)}, expected each {kind} once.")
    return tuple(registry.find(kind, name, at) for name in found)


def listed(layer: Layer) -> Layer:
    """A single reward may be given as its name alone, since most runs have one."""
    name = layer.values.get(Kind.REWARD.value)
    return (
        replace(layer, values={**layer.values, Kind.REWARD.value: [name]}) if isinstance(name, str) else layer
    )


def _bare(kind: Kind, name: str) -> str:
    """`math=0.5` → `math`."""
    return name.partition("=")[0] if kind is Kind.REWARD else name


def reward_weights(setting: Setting | None) -> dict[str, float]:
    """Reward → weight. Raises `ConfigError` for one that is no number."""
    weights: dict[str, float] = {}
    for given in () if setting is None else setting.value:
        name, equals, text = given.partition("=")
        try:
            weights[name] = float(text) if equals else 1.0
        except ValueError:
            weights[name] = math.nan
        if not math.isfinite(weights[name]):
            assert setting is not None
            at = setting.layer.at(Kind.REWARD.value)
            raise ConfigError(f"{at}: found {given!r}, expected NAME=WEIGHT with a weight that is a number.")
    return weights


def _who(entry: Entry) -> str:
    return f"{entry.kind} {entry.record.name!r} of {entry.provider}"


def _suggestions(entry: Entry) -> Layer:
    return listed(Layer(label=_who(entry), values=dict(entry.component.suggests)))


def _scaled(layer: Layer, entry: Entry) -> Layer:
    """What a preset suggests, as the recipe takes it."""
    assert isinstance(entry.record, Algorithm)
    scales = entry.record.scales.items()
    scaled = {name: layer.values[name] * factor for name, factor in scales if name in layer.values}
    return replace(layer, values={**layer.values, **scaled})


def _recipe_layer(entry: Entry) -> Layer:
    record = entry.record
    assert isinstance(record, Algorithm)
    values: dict[str, Any] = {**record.settings, **record.parts}
    for kind, table in record.tables.items():
        for key, value in table.items():
            nested = value if isinstance(value, Mapping) else {"": value}
            values |= {f"{kind}.{key}.{inner}".removesuffix("."): item for inner, item in nested.items()}
    return Layer(label=_who(entry), values=values)


def _without_strangers(layer: Layer, choices: Mapping[str, Setting], given: tuple[Layer, ...]) -> Layer:
    """A table belongs to the part that the same layer chose: it is left out where another one won."""
    lost = {
        key
        for key in (*_ONE, "model")
        if key in layer.values and (key not in choices or layer.values[key] != choices[key].value)
    }
    gone = [f"{key}." for key in lost]
    gone += ["sglang."] if Kind.ENGINE in lost else []
    for kind in LIST_KINDS:
        kept = [_bare(kind, name) for name in choices[kind].value] if kind in choices else []
        named = [_bare(kind, name) for name in layer.values.get(kind, ())]
        gone += [f"{kind}.{name}." for name in named if name not in kept]
    gone += evals.lost_tables(layer, given)
    own, source = _source_choice((layer,)), _source_choice(given)
    if own and source and (own[0], own[1].value) != (source[0], source[1].value):
        gone.append("source.")
    values = {name: value for name, value in layer.values.items() if not name.startswith(tuple(gone))}
    return replace(layer, values=values) if gone else layer
