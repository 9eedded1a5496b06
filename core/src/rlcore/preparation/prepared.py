"""A run that has passed every check: `Prepared`, or `Served` where nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.api.part_config import GeneratorConfig
from rlcore.api.roles import POLICY
from rlcore.compose.engine_groups import group_fields, group_of
from rlcore.compose.run_checks import engine_count

if TYPE_CHECKING:
    from rlcore.api.batch import TrainBatch
    from rlcore.api.callback import Callback
    from rlcore.api.columns import Column
    from rlcore.api.model_facts import ModelFacts
    from rlcore.api.overlay import Overlay
    from rlcore.api.part import ModelSpec
    from rlcore.api.reward import Filter
    from rlcore.api.roles import RoleSpec
    from rlcore.api.sources import Prompts
    from rlcore.api.tracker import Tracker
    from rlcore.api.types import Group
    from rlcore.compose.resolved import Inference, Resolved
    from rlcore.data.prompt_tokenizer import PromptTokenizer
    from rlcore.engines.probe import Probe
    from rlcore.preparation.eval_sets import PreparedEval
    from rlcore.rollout.generators import Generators


@dataclass(frozen=True, kw_only=True)
class FrozenModel:
    """A model of `--frozen`. `path`: its directory; `fields`: its server's own, as the user gave them.

    `classifier`: it is a sequence classifier, and gives scores.
    """

    name: str
    path: str
    fields: Mapping[str, Any]
    classifier: bool = False


@dataclass(frozen=True, kw_only=True)
class Served:
    """A model that engines may serve. `gpu`: whether torch can use one here; the cluster must agree.

    `evals`: what is evaluated. `engine_fields`: of the engine's own table, and those that the run adds.
    `overlays`: as in `EngineLaunch`.
    """

    resolved: Inference
    run_dir: Path
    model: ModelSpec
    hf_config: Mapping[str, Any]
    encoder: PromptTokenizer
    evals: tuple[PreparedEval, ...]
    generators: Generators
    gpu: bool
    engine_fields: Mapping[str, Any]
    frozen: tuple[FrozenModel, ...]
    overlays: Mapping[str, Overlay] = field(default_factory=dict)

    def fields_of(self, engine: int) -> Mapping[str, Any]:
        """The server fields of engine number `engine`: those of its group, if it is in one."""
        group = group_of(engine, self.resolved.run)
        table = {**self.engine_fields, **(group_fields(group, self.resolved) if group else {})}
        fields: Mapping[str, Any] = self.resolved.engine.build().fields_of(engine, table)
        return fields

    @property
    def engines(self) -> int:
        """How many engines to start."""
        return self.resolved.run.serving.engines or 1

    @property
    def rollout_workers(self) -> int:
        """Processes to start that run generators."""
        return self.resolved.run.serving.rollout_workers

    @property
    def engine_urls(self) -> tuple[str, ...]:
        """Engines of others that are used instead of ones that are started."""
        return ()

    @property
    def eval_engines(self) -> int:
        """How many of the engines evaluate beside training."""
        return 0

    @property
    def shares_gpu(self) -> bool:
        """Whether an engine has a trainer on its device."""
        return False


@dataclass(frozen=True, kw_only=True)
class Prepared(Served):
    """A run that may start.

    `roles`: its models that train workers hold, the policy first. `last_step`: the step that ends the run.
    `facts`: the model's sizes, where its family tells them.
    """

    resolved: Resolved
    resume_from: Path | None
    roles: Mapping[str, RoleSpec]
    prompts: Prompts
    last_step: int
    facts: ModelFacts | None
    trackers: Mapping[str, Tracker]
    callbacks: Mapping[str, Callback]
    filters: Sequence[Filter]

    @property
    def saved_roles(self) -> tuple[str, ...]:
        """The roles that change, whose weights a checkpoint must hold. The others have their directory."""
        return tuple(role for role, spec in self.roles.items() if spec.optimizer or spec.refresh_every)

    def saves_rollout(self, step: int) -> bool:
        """Whether the rollout of this step is kept."""
        every = self.resolved.run.checkpoints.save_rollouts_every
        return every > 0 and step % every == 0

    @property
    def columns(self) -> Mapping[str, Column]:
        """The columns that the generator declares among the extras of its samples."""
        config = self.resolved.generator.config
        return config.columns if isinstance(config, GeneratorConfig) else {}

    def batch_of(self, groups: Sequence[Group], version: int) -> TrainBatch:
        """The batch for training on a rollout's `groups` with the weights `version`."""
        # These import torch, which a check of settings needs not.
        from rlcore.rollout.batch import to_batch
        from rlcore.rollout.replay import with_choices

        run = self.resolved.run
        batch = to_batch(
            groups,
            minibatches=run.optimizer.minibatches,
            version=version,
            kept_caches=run.asynchrony.on_publish == "in_place",
            metadata=run.data.metadata_columns,
            columns=self.columns,
            policies=[*run.policies],
        )
        samples = [sample for group in groups for sample in group.samples]
        is_sampled = all(sample.spans for sample in samples)
        return with_choices(batch, samples, run.loss.replayed if is_sampled else ())

    def probes(self) -> dict[str, Probe]:
        """What proves each publication of a policy's overlay, by policy: the first tokens of a prompt."""
        if not self.roles[POLICY].overlay:
            return {}
        # These import torch, which a check of settings needs not.
        from rlcore.engines.probe import PROBE_TOKENS, Probe
        from rlcore.learning.invariants import MAX_MEANS

        served = "fp8" if self.hf_config.get("quantization_config") else self.model.dtype
        bound = self.resolved.run.loss.max_kl_engine
        noise, share = (bound / 10, bound) if served == "fp32" else (MAX_MEANS[served][0], 0.0)
        ids = self.encoder.encode(self.prompts.train[0])[:PROBE_TOKENS]
        names = ("", *self.resolved.run.policies)
        return {name: Probe(token_ids=ids, noise=noise, bound=share, policy=name) for name in names}

    @property
    def trains(self) -> bool:
        """Whether there is a trainer."""
        return self.resolved.run.debug.only != "rollout"

    @property
    def engines(self) -> int:
        """How many engines to start, those of evaluations last; 0: others' are used, or none is needed."""
        if self.resolved.run.serving.engine_url or self._is_idle:
            return 0
        # Where responses are given, only evaluations need engines: their own, if they have some.
        only_evaluates = self.eval_engines and not self.resolved.samples
        if only_evaluates:
            return self.eval_engines
        engine, run = self.resolved.engine.build(), self.resolved.run
        return self.eval_engines + engine_count(engine, run, self.engine_fields, gpu=self.gpu)

    @property
    def rollout_workers(self) -> int:
        """Processes to start that run generators: none where nothing is generated."""
        return 0 if self._is_idle else super().rollout_workers

    @property
    def eval_engines(self) -> int:
        """How many of `engines` evaluate and do nothing else."""
        return self.resolved.run.evaluation.eval_engines if self.evals else 0

    @property
    def engine_urls(self) -> tuple[str, ...]:
        """Engines of others that are used instead of ones that are started."""
        return () if self._is_idle else self.resolved.run.serving.engine_url

    @property
    def _is_idle(self) -> bool:
        """Whether no engine has work: responses or rollouts are given, and nothing is evaluated."""
        return not (self.resolved.samples or self.evals)

    @property
    def shares_gpu(self) -> bool:
        """Whether an engine has a trainer on its device."""
        return self.gpu and self.trains and self.resolved.run.placement == "colocate"

    @property
    def shares_memory(self) -> bool:
        """Whether engines give their memory to the trainer while it works: they must rest then."""
        run = self.resolved.run
        return self.trains and run.asynchrony.rests and run.placement == "colocate" and not self.engine_urls
