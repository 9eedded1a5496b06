"""A run, and an evaluation alone, with everything chosen: frozen, checked, picklable."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlcore.api.columns import Input, TrainsOn
from rlcore.api.part import Part, RewardPart
from rlcore.api.part_config import (
    AdvantageConfig,
    BatchConfig,
    ClusterConfig,
    CorrectionConfig,
    EngineConfig,
    FilterConfig,
    GroupConfig,
    LossConfig,
    ProducerConfig,
    TrainerConfig,
    ValueLossConfig,
)
from rlcore.api.plugin_file import PluginFile
from rlcore.api.records import Kind, ModelFamily
from rlcore.api.roles import RoleOptions
from rlcore.api.run_config import RunConfig
from rlcore.compose.evals import EvalSet, flat_source
from rlcore.config import toml
from rlcore.plugins.registry import PluginInfo


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """The model of a run.

    `name`: what `--model` has to say to choose it again. `path`: its Hugging Face directory; None: it is the
    preset of its family. `hub`: `path` has config.json, and `models.download` fetches the weights.
    `adopting`: all families that adopt models (`ModelFamily.adopt`).
    """

    name: str
    family: ModelFamily
    path: str | None
    bridge: Part
    hub: bool = False
    adopting: tuple[ModelFamily, ...] = ()

    @property
    def lazy_bridge(self) -> bool:
        """Whether the driver does not import the bridge."""
        return self.path is None and self.family.lazy_bridge


@dataclass(frozen=True, kw_only=True)
class Inference:
    """What generates and judges. `rlcore eval` needs no more; a run adds the training.

    `rewards`: what judges the samples, if anything. `engine_fields`: the engine's own table as given, so
    values from flags are texts. `frozen_fields`, `group_fields`: likewise, with `NAME.` of the frozen model
    or the engine group in front. `plugins`: the plugins of all parts, by name.
    """

    run: RunConfig
    model: ModelChoice
    generator: Part
    engine: Part[EngineConfig]
    cluster: Part[ClusterConfig]
    rewards: tuple[RewardPart, ...] = ()
    evals: tuple[EvalSet, ...] = ()
    engine_fields: Mapping[str, Any] = field(default_factory=dict)
    frozen_fields: Mapping[str, Any] = field(default_factory=dict)
    group_fields: Mapping[str, Any] = field(default_factory=dict)
    plugins: tuple[PluginInfo, ...] = ()
    plugin_files: tuple[PluginFile, ...] = ()

    @property
    def context_length(self) -> int:
        """Tokens of the longest prompt plus the longest response, evaluations included."""
        sampling = self.run.sampling
        evaluated = [evaluation.config.max_tokens or 0 for evaluation in self.evals]
        return sampling.max_prompt_tokens + max([sampling.max_response_tokens, *evaluated])

    def parts(self) -> list[Part]:
        """Every part that is chosen, those of the evaluations too."""
        parts = [
            part
            for evaluation in self.evals
            for part in (evaluation.source, evaluation.reward, evaluation.generator)
            if part
        ]
        return [*parts, self.generator, self.engine, self.cluster, *self.rewards]

    def flat_rewards(self) -> dict[str, Any]:
        """The rewards, their weights and their settings, by dotted names."""
        weighted = [one.name if one.weight == 1 else f"{one.name}={one.weight!r}" for one in self.rewards]
        flat: dict[str, Any] = {Kind.REWARD.value: weighted}
        for part in self.rewards:
            flat |= part.flat(f"{Kind.REWARD}.{part.name}")
        return flat


@dataclass(frozen=True, kw_only=True)
class Resolved(Inference):
    """Everything that a run is made of. Travels to workers by pickle.

    `advantage`: None where the data give the responses. `names_producer`: whether `--producer` was given;
    otherwise the other settings imply the producer. `trainer_fields`: as `engine_fields`, but numbers and
    booleans have their types. `role_fields`: by role, the fields that replace them.
    """

    algorithm: str
    trainer: Part[TrainerConfig]
    loss: Part[LossConfig]
    source: Part
    filters: tuple[Part[FilterConfig], ...]
    producer: Part[ProducerConfig]
    names_producer: bool = False
    trains_on: TrainsOn = TrainsOn.ROLLOUTS
    advantage: Part[AdvantageConfig] | None = None
    value_loss: Part[ValueLossConfig] | None = None
    corrections: tuple[Part[CorrectionConfig], ...] = ()
    model_hooks: tuple[Part, ...] = ()
    trackers: tuple[Part, ...] = ()
    callbacks: tuple[Part, ...] = ()
    trainer_fields: Mapping[str, Any] = field(default_factory=dict)
    role_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def roles(self) -> dict[str, RoleOptions]:
        """Role → its table, of the models beside the policy that train workers hold: those that are read."""
        needs = self.needs
        return {name: role for name, role in self.run.roles.items() if role.model and role.column in needs}

    def fields_of(self, role: str) -> Mapping[str, Any]:
        """The trainer's fields for a role, as given: the policy's, overridden by the role's own."""
        return {**self.trainer_fields, **self.role_fields.get(role, {})}

    @property
    def samples(self) -> bool:
        """Whether engines sample what is trained on."""
        return self.trains_on is TrainsOn.ROLLOUTS and not self.producer.config.makes_batches

    def parts(self) -> list[Part]:
        """Every part that is chosen, those of the evaluations too."""
        some = [part for part in (self.advantage, self.value_loss) if part]
        bridge = [self.model.bridge] if self.trainer.config.needs_bridge else []
        lists = (*self.filters, *self.corrections, *self.model_hooks, *self.trackers, *self.callbacks)
        chosen = (self.loss, self.trainer, self.source, self.producer)
        return [*chosen, *some, *bridge, *lists, *super().parts()]

    def batch_parts(self) -> Iterator[tuple[str, Part[BatchConfig]]]:
        """Kind and part of everything that works on the train batch."""
        if self.advantage is not None:
            yield "advantage", self.advantage
        yield "loss", self.loss
        for part in self.corrections:
            yield "correction", part
        if self.value_loss is not None:
            yield "value_loss", self.value_loss

    def group_parts(self) -> list[tuple[str, Part[GroupConfig]]]:
        """Kind and part of everything that sees all samples of a prompt."""
        chosen: list[tuple[str, Part[GroupConfig]]] = [*self.batch_parts()]
        chosen += [("reward", part) for part in self.rewards]
        return [*chosen, *(("filter", part) for part in self.filters)]

    @property
    def needs(self) -> frozenset[Input]:
        """The costly inputs of the batch that something reads: a part, or a KL term."""
        parts = (part.config.needs for _, part in self.batch_parts())
        return self.return_needs.union(self.run.kl.needs, *parts)

    @property
    def return_needs(self) -> frozenset[Input]:
        """The part of `needs` that the returns of a value model need.

        Steps that train this model alone compute only these.
        """
        parts = [part.config.needs for part in (self.advantage, self.value_loss) if part is not None]
        return self.run.kl.advantage_needs.union(*parts)

    def flat(self) -> dict[str, Any]:
        """Every setting by its dotted name. A file with these values gives the same run."""
        flat: dict[str, Any] = {"algo": self.algorithm, "model": self.model.name}
        choice, source = flat_source(self.source)
        flat |= choice
        if self.plugin_files:
            flat["plugin"] = [file.path for file in self.plugin_files]
        flat |= {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.run.values().items()
        }
        del flat["steps" if self.run.epochs else "epochs"]  # a file with both would be refused
        flat |= self.model.bridge.flat("model")
        for kind in (Kind.LOSS, Kind.ENGINE, Kind.TRAINER, Kind.CLUSTER):
            part: Part = getattr(self, kind)
            flat |= {kind.value: part.name, **part.flat(kind)}
        # One that was not named is left out, so that a resume with other settings may imply another one.
        flat[Kind.PRODUCER.value] = self.producer.name if self.names_producer else None
        flat |= self.producer.flat(Kind.PRODUCER) if self.names_producer else {}
        if self.trains_on is TrainsOn.ROLLOUTS:
            flat |= self._flat_of_rollouts()
        flat |= source
        flat |= _flat_list(Kind.MODEL_HOOK, self.model_hooks)
        flat |= _flat_list(Kind.TRACKER, self.trackers) | _flat_list(Kind.CALLBACK, self.callbacks)
        for evaluation in self.evals:
            flat |= evaluation.flat()
        passed = {
            self.trainer.config.table: self.trainer_fields,
            self.engine.config.table: self.engine_fields,
            "frozen": self.frozen_fields,
            "engine_group": self.group_fields,
            **{f"{role}.{self.trainer.config.table}": fields for role, fields in self.role_fields.items()},
        }
        for table, fields in passed.items():
            flat |= {f"{table}.{key}": value for key, value in fields.items()}
        return flat

    def _flat_of_rollouts(self) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for kind in (Kind.ADVANTAGE, Kind.GENERATOR, Kind.VALUE_LOSS):
            part: Part | None = getattr(self, kind)
            flat[kind.value] = part.name if part else None
            flat |= part.flat(kind) if part else {}
        flat |= _flat_list(Kind.FILTER, self.filters) | _flat_list(Kind.CORRECTION, self.corrections)
        return flat | self.flat_rewards()

    def to_toml(self) -> str:
        """TOML that `--config` turns into this run again."""
        return toml.dump_settings(self.flat())


def _flat_list(kind: Kind, parts: Sequence[Part]) -> dict[str, Any]:
    """The names of `parts`, and the settings of each."""
    flat: dict[str, Any] = {kind.value: [part.name for part in parts]}
    for part in parts:
        flat |= part.flat(f"{kind}.{part.name}")
    return flat
