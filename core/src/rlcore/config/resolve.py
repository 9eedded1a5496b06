"""From what was given (a file, flags) to a `Resolved` run: frozen, checked, picklable.

Precedence: defaults < suggestions of parts < of the model < of the source < recipe < file < flags.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlcore.config import fit, layers, toml
from rlcore.config.evals import DATA_SOURCE, EvalChoice, EvalConfig, EvalSet
from rlcore.config.layers import Setting
from rlcore.config.offers import Offers
from rlcore.config.parts import (
    AdvantageConfig,
    CorrectionConfig,
    FilterConfig,
    LossConfig,
    ValueLossConfig,
)
from rlcore.config.run import RunConfig
from rlcore.config.select import PASS_THROUGH, Selection
from rlcore.plugins.files import PluginFile
from rlcore.plugins.records import Kind
from rlcore.plugins.registry import Entry
from rlcore.spec import Part, RewardPart
from rlcore.trains_on import TrainsOn

SHARED_KEYS = ("_key", "chat_template")
"""Endings of the settings that say how a row of a file is read."""


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """The model. `name`: as it is chosen again; `path`: its Hugging Face directory (None: the preset,

    which `preset`, a factory string, writes); `hub`: `path` still lacks the weights (`models.download`).
    """

    name: str
    family: str
    path: str | None
    preset: str | None
    bridge: Part
    hub: bool = False


@dataclass(frozen=True, kw_only=True)
class Inference:
    """What generates and judges: a part of every run, and all of an evaluation alone.

    `rewards`: what judges the samples; there may be none. `sglang`: pass-through fields as given (texts where
    they came from flags). `plugins`: plugin → version, for the provenance; of a plugin file the version is
    `sha256:…`.
    """

    run: RunConfig
    model: ModelChoice
    generator: Part
    engine: Part
    rewards: tuple[RewardPart, ...] = ()
    evals: tuple[EvalSet, ...] = ()
    sglang: Mapping[str, Any] = field(default_factory=dict)
    plugins: Mapping[str, str] = field(default_factory=dict)
    plugin_files: tuple[PluginFile, ...] = ()

    @property
    def context_length(self) -> int:
        """Tokens of the longest prompt and the longest response together."""
        return self.run.max_prompt_tokens + max(self.run.max_response_tokens, *self._eval_tokens)

    @property
    def _eval_tokens(self) -> list[int]:
        return [0, *(one.config.max_tokens or 0 for one in self.evals)]


@dataclass(frozen=True, kw_only=True)
class Resolved(Inference):
    """Everything that a run is made of. Travels to workers by pickle.

    `advantage`, `reward`: None where the responses are given. `megatron`: as `sglang`.
    """

    algorithm: str
    loss: Part[LossConfig]
    source: Part
    filters: tuple[Part[FilterConfig], ...]
    trains_on: TrainsOn = TrainsOn.ROLLOUTS
    advantage: Part[AdvantageConfig] | None = None
    value_loss: Part[ValueLossConfig] | None = None
    corrections: tuple[Part[CorrectionConfig], ...] = ()
    megatron: Mapping[str, Any] = field(default_factory=dict)

    def flat(self) -> dict[str, Any]:
        """Every setting by its dotted name; what a file or flags would have to say to get this run."""
        flat: dict[str, Any] = {"algo": self.algorithm, "model": self.model.name}
        if self.source.name == DATA_SOURCE:
            flat["data"] = self.source.config.model_dump(mode="json")["path"]
        else:
            flat["task"] = self.source.name
        if self.plugin_files:
            flat["plugin"] = [file.path for file in self.plugin_files]
        flat |= self.run.model_dump(mode="json")
        flat |= _table("model", self.model.bridge)
        for kind in (Kind.LOSS, Kind.ENGINE):
            part: Part = getattr(self, kind)
            flat |= {kind.value: part.name, **_table(kind, part)}
        if self.trains_on is TrainsOn.ROLLOUTS:
            flat |= self._flat_of_rollouts()
        flat |= _table("source", self.source)
        if self.source.name == DATA_SOURCE:
            del flat["source.path"]
        for one in self.evals:
            flat |= one.flat()
        for table in PASS_THROUGH:
            flat |= {f"{table}.{key}": value for key, value in getattr(self, table).items()}
        return flat

    def _flat_of_rollouts(self) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for kind in (Kind.ADVANTAGE, Kind.GENERATOR, Kind.VALUE_LOSS):
            part: Part | None = getattr(self, kind)
            flat[kind.value] = part.name if part else None
            flat |= _table(kind, part) if part else {}
        for kind, parts in ((Kind.FILTER, self.filters), (Kind.CORRECTION, self.corrections)):
            flat[kind.value] = [part.name for part in parts]
            for part in parts:
                flat |= _table(f"{kind}.{part.name}", part)
        flat[Kind.REWARD.value] = [_with_weight(part) for part in self.rewards]
        for part in self.rewards:
            flat |= _table(f"{Kind.REWARD}.{part.name}", part)
        return flat

    def to_toml(self) -> str:
        """TOML that `--config` turns into this run again."""
        return toml.dump(self.flat())


def resolve(
    selection: Selection, *, plugins: Mapping[str, str], plugin_files: Iterable[PluginFile] = ()
) -> Resolved:
    """The run that `selection` (`rlcore.config.select.select`) describes. Imports no torch.

    Raises `UserError`: one sentence that names the flag or the file.
    """
    selection.require_complete()
    settings = selection.settings()
    entries = selection.entries
    run = layers.build(RunConfig, settings)
    resolved = Resolved(
        run=run,
        algorithm=entries[Kind.ALGORITHM].record.name,
        trains_on=selection.trains_on,
        advantage=_optional(selection, Kind.ADVANTAGE, settings),
        loss=resolve_part(entries[Kind.LOSS], settings),
        generator=resolve_part(entries[Kind.GENERATOR], settings),
        rewards=resolve_rewards(selection, settings, run.rank_reward),
        engine=resolve_part(entries[Kind.ENGINE], settings),
        source=resolve_part(entries[Kind.SOURCE], settings),
        filters=_several(selection, Kind.FILTER, settings),
        model=resolve_model(selection),
        value_loss=_optional(selection, Kind.VALUE_LOSS, settings),
        corrections=_several(selection, Kind.CORRECTION, settings),
        evals=resolve_evals(selection, settings),
        megatron=pass_through("megatron", settings),
        sglang=pass_through("sglang", settings),
        plugins=dict(plugins),
        plugin_files=tuple(plugin_files),
    )
    return fit.fit(resolved, settings, Offers(selection.registry))


def resolve_model(selection: Selection) -> ModelChoice:
    """The model that `selection` chooses; of its other parts none need be there."""
    found = selection.model
    assert found is not None, "a selection without --model is not resolved"
    return ModelChoice(
        name=found.name,
        family=found.family.name,
        path=found.path,
        preset=None if found.path else found.family.preset,
        bridge=resolve_part(found.entry, selection.settings()),
        hub=found.hub,
    )


def resolve_evals(selection: Selection, settings: Mapping[str, Setting]) -> tuple[EvalSet, ...]:
    """The evaluations of `selection`; their files have the keys of the run's, unless they say otherwise."""
    run_source = selection.entries.get(Kind.SOURCE)
    return tuple(_eval(one, run_source, settings) for one in selection.evals)


def _eval(choice: EvalChoice, run_source: Entry | None, settings: Mapping[str, Setting]) -> EvalSet:
    table = choice.table
    if run_source is not None and run_source.record.name == choice.source.record.name == DATA_SOURCE:
        shared = [key for key in choice.source.config.model_fields if key.endswith(SHARED_KEYS)]
        inherited = {f"{table}.source.{key}": settings.get(f"source.{key}") for key in shared}
        settings = {**{key: one for key, one in inherited.items() if one is not None}, **settings}
    parts = {kind: resolve_part(entry, settings, f"{table}.{kind}") for kind, entry in choice.parts.items()}
    return EvalSet(
        name=choice.name,
        config=layers.build(EvalConfig, settings, table),
        source=resolve_part(choice.source, settings, f"{table}.source"),
        **parts,
    )


def resolve_part(entry: Entry, settings: Mapping[str, Setting], table: str | None = None) -> Part[Any]:
    """The part with its config from `table`, which is that of its kind unless told otherwise.

    The registry has seen to it that the config is of the kind.
    """
    record = entry.component
    config = layers.build(entry.config, settings, table or entry.kind)
    return Part(name=record.name, factory=record.factory, config=config)


def _optional(selection: Selection, kind: Kind, settings: Mapping[str, Setting]) -> Part[Any] | None:
    return resolve_part(selection.entries[kind], settings) if kind in selection.entries else None


def _several(selection: Selection, kind: Kind, settings: Mapping[str, Setting]) -> tuple[Part[Any], ...]:
    return tuple(
        resolve_part(entry, settings, f"{kind}.{entry.record.name}") for entry in selection.lists[kind]
    )


def resolve_rewards(
    selection: Selection, settings: Mapping[str, Setting], ranked: Collection[str] = ()
) -> tuple[RewardPart, ...]:
    """The rewards of `selection` with their weights. `ranked`: those that count by their rank."""
    parts = _several(selection, Kind.REWARD, settings)
    return tuple(
        RewardPart(**vars(part), weight=selection.weights[part.name], ranked=part.name in ranked)
        for part in parts
    )


def _with_weight(part: RewardPart) -> str:
    return part.name if part.weight == 1 else f"{part.name}={part.weight!r}"


def _table(table: str, part: Part) -> dict[str, Any]:
    return {f"{table}.{key}": value for key, value in part.config.model_dump(mode="json").items()}


def pass_through(table: str, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The fields of a table that are not rlcore's own."""
    prefix = f"{table}."
    return {name.removeprefix(prefix): s.value for name, s in settings.items() if name.startswith(prefix)}
