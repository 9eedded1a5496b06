"""From the TOML of a run to what is planned: its layout, and what it does with the GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlcore import (
    Algorithm,
    BatchConfig,
    Config,
    ConfigError,
    Engine,
    Input,
    Kind,
    ModelFacts,
    Part,
    Registry,
    RunConfig,
    TrainerConfig,
    TrainsOn,
    ValueLossConfig,
    did_you_mean,
)
from rlcore_cli.program import Program
from rlcore_plan.layout import Layout, Recompute
from rlcore_plan.memory import CRITIC, REFERENCE, TEACHER, Apart, Beside, Optimizer, Roles, Workload
from rlcore_plan.phases import Run
from rlcore_plan.published import read_facts

MEGABYTE = 10**6
BUCKET_MB = 256
"""Of the engines' own settings, where the file says nothing."""
SGD_MOMENTUM = 0.9
"""megatron-core's."""
NARROW = 2
"""Bytes of a moment in bf16 or fp16."""
CORE_ATTENTION = "core_attn"
"""What megatron-core computes again of a layer where no module is named."""
DISTRIBUTED = "distribute_saved_activations"


@dataclass(frozen=True)
class Fields:
    """Settings by the names that follow `table` in the file at `path`."""

    path: Path
    table: str
    values: Mapping[str, Any]

    def number(self, name: str, default: float = 1) -> float:
        """ConfigError. Where it is `none`, the default."""
        value = self.values.get(name, default)
        return _number(self.path, f"{self.table}.{name}", default if str(value).lower() == "none" else value)

    def size(self, name: str, default: float = 1) -> int:
        """A whole number. ConfigError."""
        return int(self.number(name, default))

    def is_on(self, name: str) -> bool:
        """A switch."""
        return str(self.values.get(name, False)).lower() == "true"

    def text(self, name: str, default: str = "") -> str:
        return str(self.values.get(name, default))

    def with_own(self, own: Fields) -> Fields:
        """These, with `own` in their place."""
        return Fields(self.path, self.table, {**self.values, **own.values})


def _number(path: Path, name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"--config {path}: {name}: found {value!r}, expected a number.") from None


@dataclass(frozen=True)
class File:
    """The settings of a run's TOML by their dotted names, and `run`: with those that it does not say.

    `configs`: of the parts that it chooses.
    """

    path: Path
    settings: Mapping[str, Any]
    registry: Registry
    run: RunConfig
    configs: Sequence[type[Config]]

    @classmethod
    def read(cls, path: Path, program: Program) -> File:
        """UserError, also of a name that no run reads."""
        gpus = _for_gpus(program.plugins.registry)
        run_file = program.run_file(path, {"engine": gpus.name} if gpus else {})
        return cls(path, run_file.settings, run_file.program.plugins.registry, run_file.run, run_file.configs)

    @property
    def model(self) -> str:
        """ConfigError where it names none."""
        model = self.settings.get("model")
        if not isinstance(model, str):
            raise ConfigError(f"--config {self.path}: model is missing; add --model.")
        return model

    def value(self, name: str) -> Any:
        """A setting of the run: that of the file, else of the recipe, of the preset, or the default."""
        return self.run.values()[name]

    def fields(self, table: str) -> Fields:
        """Those of a table."""
        prefix = f"{table}."
        values = {
            key.removeprefix(prefix): item for key, item in self.settings.items() if key.startswith(prefix)
        }
        return Fields(self.path, table, values)

    @property
    def trainer(self) -> TrainerConfig:
        """The trainer's own. ConfigError where there is none of the name."""
        entry = None if "trainer" in self.settings else self.registry.default(Kind.TRAINER)
        if entry is None:
            name = str(self.settings.get("trainer"))
            entry = self.registry.find(Kind.TRAINER, name, f"--config {self.path}: trainer")
        config = entry.config()
        assert isinstance(config, TrainerConfig)
        return config

    @property
    def engine(self) -> Engine | None:
        """That of the name, or the one that GPUs have by default. None: there is no such default here."""
        name = self.settings.get("engine")
        if name is None:
            return _for_gpus(self.registry)
        entry = self.registry.find(Kind.ENGINE, str(name), f"--config {self.path}: engine")
        own = {key: value for key, value in self.fields("engine").values.items() if value != "none"}
        try:
            return _built(entry, own)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(["engine", *map(str, first["loc"])])
            raise ConfigError(f"--config {self.path}: {where}: {first['msg']}.") from error

    def role(self, name: str) -> Fields:
        """The trainer's fields of a role; empty: of the policy."""
        table = self.trainer.table
        policy = self.fields(table)
        return policy.with_own(self.fields(f"{name}.{table}")) if name else policy

    def check_trainer(self) -> None:
        """ConfigError for a field that the trainer's library does not have, where that is known."""
        trainer = self.trainer
        tables = (trainer.table, *(f"{role}.{trainer.table}" for role in (CRITIC, REFERENCE, TEACHER)))
        known = trainer.field_names()
        for table in tables if known else ():
            for name in self.fields(table).values:
                if name not in known:
                    meant = trainer.synonyms.get(name)
                    hint = f" Did you mean {meant!r}?" if meant else did_you_mean(name, known)
                    raise ConfigError(
                        f"--config {self.path}: {table}.{name} is no field of {trainer.fields_of}.{hint}"
                    )

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return int(self.value("max_prompt_tokens") + self.value("max_response_tokens"))

    @property
    def recipe(self) -> Algorithm | None:
        """None where the file names none."""
        name = self.settings.get("algo")
        if name is None:
            return None
        record = self.registry.find(Kind.ALGORITHM, str(name), f"--config {self.path}: algo").record
        assert isinstance(record, Algorithm)
        return record

    @property
    def has_critic(self) -> bool:
        return any(issubclass(config, ValueLossConfig) for config in self.configs)

    @property
    def has_reference(self) -> bool:
        """Whether the KL term or a part reads its log-probs."""
        needs = [config.needs for config in self.configs if issubclass(config, BatchConfig)]
        return self.value("kl_coef") > 0 or any(Input.REFERENCE_LOG_PROBS in inputs for inputs in needs)

    @property
    def generates(self) -> bool:
        """Whether the run starts engines of its own."""
        is_given = self.recipe is not None and self.recipe.trains_on is not TrainsOn.ROLLOUTS
        return not (is_given or self.value("engine_url"))


def _for_gpus(registry: Registry) -> Engine | None:
    """The engine that GPUs have by default."""
    every = [_built(entry) for entry in registry.entries(Kind.ENGINE)]
    return next((engine for engine in every if engine.gpu_share is not None), None)


def _built(entry: Any, settings: Mapping[str, Any] | None = None) -> Engine:
    """The engine of a registry's entry, with its own defaults where `settings` say nothing."""
    config = entry.config.model_validate(settings or {})
    engine = Part(name=entry.component.name, factory=entry.component.factory, config=config).build()
    assert isinstance(engine, Engine)
    return engine


def layout_of(file: File, facts: ModelFacts) -> Layout:
    """The policy's own, as its trainer reads it. ConfigError."""
    file.check_trainer()
    fields = file.role("")
    ranks = file.settings.get("ranks", file.trainer.model_ranks(fields.values))
    return _layout(file, fields, facts, int(_number(file.path, "ranks", ranks)))


def _layout(file: File, fields: Fields, facts: ModelFacts, world: int) -> Layout:
    chunks = file.trainer.stage_layers(fields.values, facts.layers)
    stages = tuple(sum(each) for each in chunks)
    tensor = fields.size("tensor_model_parallel_size")
    return Layout(
        world=world,
        tensor=tensor,
        pipeline=len(chunks),
        context=fields.size("context_parallel_size"),
        expert=fields.size("expert_model_parallel_size"),
        expert_tensor=fields.size("expert_tensor_parallel_size"),
        sequence=tensor > 1 and fields.is_on("sequence_parallel"),
        recompute=_recompute(fields),
        stages=stages if len(set(stages)) > 1 else (),
        virtual=len(chunks[0]),
        mtp="mtp_num_layers" in fields.values,
    )


def _recompute(fields: Fields) -> Recompute | None:
    # without a word of it a GPU computes every layer again
    asks = any(name.startswith("recompute_") for name in fields.values)
    granularity = fields.text("recompute_granularity", "" if asks else "full")
    if granularity == "full":
        is_block = fields.text("recompute_method") == "block"
        layers, is_distributed = fields.size("recompute_num_layers"), fields.is_on(DISTRIBUTED)
        return Recompute(layers=layers, block=is_block, distributed=is_distributed)
    if granularity != "selective":
        return None
    given = fields.values.get("recompute_modules", CORE_ATTENTION)
    given = CORE_ATTENTION if given == "none" else given
    names = given.split(",") if isinstance(given, str) else given
    return Recompute(modules=tuple(sorted(str(name).strip() for name in names)))


def _is_of_recompute(name: str) -> bool:
    return name.startswith("recompute_") or name == DISTRIBUTED


def apart_of(file: File, facts: ModelFacts) -> Iterator[Apart]:
    """The roles that have workers of their own. ConfigError."""
    for role in (CRITIC, REFERENCE, TEACHER):
        if ranks := int(file.value(f"{role}_ranks")):
            fields, model = file.role(role), file.value(f"{role}_model")
            own = read_facts(model, file.registry) if model else facts
            layout = replace(_layout(file, fields, own, ranks), mtp=False)  # the policy's alone
            optimizer = optimizer_of(fields) if role == CRITIC else None
            work = workload(file, layout)
            yield Apart(role=role, facts=own, layout=layout, work=work, optimizer=optimizer)


def trained_by(file: File, facts: ModelFacts, layout: Layout) -> Run:
    """What the run's trainer does, without engines. ConfigError."""
    beside = file.has_critic and not file.value("critic_ranks")
    has_reference = file.has_reference and not file.value("reference_ranks")
    has_teacher = bool(file.value("teacher_model")) and not file.value("teacher_ranks")
    return Run(
        work=workload(file, layout),
        optimizer=optimizer_of(file.role("")),
        roles=Roles(
            critic=optimizer_of(file.role(CRITIC)) if beside else None,
            critic_model=_beside(file, CRITIC, facts) if beside else None,
            reference=file.value("reference_placement") if has_reference else "none",
            reference_model=_beside(file, REFERENCE, facts) if has_reference else None,
            teacher=_beside(file, TEACHER, facts) if has_teacher else None,
        ),
        apart=tuple(apart_of(file, facts)),
        is_colocated=file.value("placement") == "colocate",
        sleep=file.value("sleep"),
        bucket=int(file.fields("engine").number("bucket_mb", BUCKET_MB) * MEGABYTE),
    )


def _beside(file: File, role: str, facts: ModelFacts) -> Beside:
    """The model of a role on the policy's workers, whose model has `facts`. ConfigError."""
    model = file.value(f"{role}_model")
    own = read_facts(model, file.registry) if model else facts
    fields, table = file.role(role), f"{role}.{file.trainer.table}"
    chunks = file.trainer.stage_layers(fields.values, own.layers)
    return Beside(
        facts=own,
        stages=tuple(sum(each) for each in chunks),
        recompute=_recompute(fields),
        owns_recompute=any(_is_of_recompute(name) for name in file.fields(table).values),
    )


def workload(file: File, layout: Layout) -> Workload:
    """Of each optimizer step under `layout`."""
    tokens = int(file.value("tokens_per_rank"))
    samples = file.value("prompts_per_step") * file.value("group_size") / file.value("minibatches")
    batches = math.ceil(samples / max(1, layout.data) * file.longest / tokens)
    dtype = file.value("dtype")
    return Workload(
        dtype="fp32" if dtype == "fp32" else "bf16",
        tokens=tokens,
        micro_batches=max(1, batches),
        longest=file.longest,
    )


def optimizer_of(fields: Fields) -> Optimizer:
    """The trainer's, as `fields` set it. ConfigError."""
    on_host = fields.is_on("optimizer_cpu_offload")
    narrow = [fields.text(name, "fp32") for name in ("exp_avg_dtype", "exp_avg_sq_dtype")]
    kind = fields.text("optimizer", "adam")
    has_narrow = fields.text("grad_reduce_in_fp32", "true").lower() == "false"
    if kind == "sgd":
        moments = 4 if fields.number("sgd_momentum", SGD_MOMENTUM) else 0
        return Optimizer(moments=moments, is_sharded=False, has_narrow_gradients=has_narrow)
    return Optimizer(
        moments=sum(4 if dtype == "fp32" else NARROW for dtype in narrow),
        of_matrices=4 if kind == "muon" else None,
        is_sharded=kind == "adam" and fields.text("use_distributed_optimizer", "true").lower() == "true",
        on_host=fields.number("optimizer_offload_fraction") if on_host else 0.0,
        owns_masters=on_host or fields.is_on("use_precision_aware_optimizer"),
        has_narrow_gradients=has_narrow,
    )
