"""From the TOML of a run to what is planned: its layout, and what it does with the GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore import (
    Algorithm,
    ConfigError,
    Kind,
    ModelFacts,
    Registry,
    RunConfig,
    TrainerConfig,
    TrainsOn,
    read_settings,
)
from rlcore_plan.engines import Engines
from rlcore_plan.layout import Layout
from rlcore_plan.memory import Optimizer, Roles, Workload
from rlcore_plan.phases import Run
from rlcore_plan.published import read_facts

MEGABYTE = 10**6
BUCKET_MB = 256
"""Of the engines' own settings, where the file says nothing."""
SHARE = 0.4
"""Of a GPU's memory, what SGLang takes beside a trainer where nothing says it."""
NARROW = 2
"""Bytes of a moment in bf16 or fp16."""


@dataclass(frozen=True)
class File:
    """The settings of a run's TOML by their dotted names, and those of a run where it says nothing."""

    path: Path
    settings: Mapping[str, Any]
    registry: Registry

    @classmethod
    def read(cls, path: Path, registry: Registry) -> File:
        """ConfigError where it is none."""
        return cls(path, read_settings(path, "--config"), registry)

    @property
    def model(self) -> str:
        """ConfigError where it names none."""
        found = self.settings.get("model")
        if not isinstance(found, str):
            raise ConfigError(f"--config {self.path}: model is missing; add --model.")
        return found

    def value(self, name: str) -> Any:
        """A setting of the run."""
        return self.settings.get(name, self._recipe_settings.get(name, RunConfig().values().get(name)))

    def number(self, name: str, default: float = 1) -> float:
        """A number of a table. ConfigError."""
        found = self.settings.get(name, default)
        try:
            return float(found)
        except (TypeError, ValueError):
            raise ConfigError(f"--config {self.path}: {name}: found {found!r}, expected a number.") from None

    def size(self, name: str) -> int:
        """A parallel size of the trainer."""
        return int(self.number(f"megatron.{name}"))

    def is_on(self, name: str) -> bool:
        """A switch of a table."""
        return str(self.settings.get(name, False)).lower() == "true"

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
    def _recipe_settings(self) -> Mapping[str, Any]:
        return self.recipe.settings if self.recipe else {}

    @property
    def has_critic(self) -> bool:
        chosen = self.settings.get("value_loss", self.recipe.parts.get("value_loss") if self.recipe else None)
        return chosen not in (None, "none")

    @property
    def generates(self) -> bool:
        """Whether the run starts engines of its own."""
        is_given = self.recipe is not None and self.recipe.trains_on is not TrainsOn.ROLLOUTS
        return not (is_given or self.value("engine_url"))


def _trainer(file: File) -> TrainerConfig:
    entry = file.registry.default(Kind.TRAINER)
    if "trainer" in file.settings or entry is None:
        name = str(file.settings.get("trainer"))
        entry = file.registry.find(Kind.TRAINER, name, f"--config {file.path}: trainer")
    config = entry.config()
    assert isinstance(config, TrainerConfig)
    return config


def _fields(file: File, table: str) -> dict[str, Any]:
    prefix = f"{table}."
    return {key.removeprefix(prefix): item for key, item in file.settings.items() if key.startswith(prefix)}


def gpus_beside(file: File, run: Run, layout: Layout) -> dict[str, int]:
    """GPUs that the run takes beside those of the policy's workers, by what they are for. ConfigError."""
    found = {}
    if file.has_critic and file.value("critic_workers") == "separate":
        config = _trainer(file)
        policy, own = _fields(file, config.table), _fields(file, f"critic.{config.table}")
        copies = layout.world // config.model_ranks(policy)
        found["the critic"] = int(file.value("critic_ranks")) or copies * config.model_ranks(policy | own)
    if run.engines and not run.is_colocated:
        found["engines"] = run.engines.count * run.engines.gpus
        if any(name.startswith("eval.") for name in file.settings):
            found["evaluations"] = int(file.value("eval_engines")) * run.engines.gpus
    return {name: count for name, count in found.items() if count}


def layout_of(file: File, facts: ModelFacts) -> Layout:
    """The file's own, as its trainer reads it. ConfigError."""
    config = _trainer(file)
    fields = _fields(file, config.table)
    chunks = config.stage_layers(fields, facts.layers)
    stages = tuple(sum(each) for each in chunks)
    tensor = file.size("tensor_model_parallel_size")
    granularity = file.settings.get("megatron.recompute_granularity", "full")  # a GPU's default
    return Layout(
        world=int(file.number("ranks", config.model_ranks(fields))),
        tensor=tensor,
        pipeline=len(chunks),
        context=file.size("context_parallel_size"),
        expert=file.size("expert_model_parallel_size"),
        sequence=tensor > 1 and file.is_on("megatron.sequence_parallel"),
        recompute=granularity == "full",
        stages=stages if len(set(stages)) > 1 else (),
        virtual=len(chunks[0]),
    )


def run_of(file: File, facts: ModelFacts, layout: Layout) -> Run:
    """What the run does beside it. ConfigError."""
    teacher = file.value("teacher_model")
    return Run(
        work=_workload(file, layout),
        optimizer=_optimizer(file),
        roles=Roles(
            critic=file.has_critic and file.value("critic_workers") == "same",
            reference=file.value("reference_placement") if file.value("kl_coef") else "none",
            teacher=read_facts(teacher, file.registry) if teacher else None,
        ),
        engines=_engines(file) if file.generates else None,
        is_colocated=file.value("placement") == "colocate",
        sleep=str(file.settings.get("sleep", "none")),
        bucket=int(file.number("engine.bucket_mb", BUCKET_MB) * MEGABYTE),
    )


def _workload(file: File, layout: Layout) -> Workload:
    tokens, longest = int(file.value("tokens_per_rank")), _longest(file)
    samples = file.value("prompts_per_step") * file.value("group_size") / file.value("minibatches")
    batches = math.ceil(samples / max(1, layout.data) * longest / tokens)
    dtype = file.value("dtype")
    return Workload(dtype="fp32" if dtype == "fp32" else "bf16", tokens=tokens, micro_batches=max(1, batches))


def _optimizer(file: File) -> Optimizer:
    on_host = file.is_on("megatron.optimizer_cpu_offload")
    narrow = [
        str(file.settings.get(f"megatron.{name}", "fp32")) for name in ("exp_avg_dtype", "exp_avg_sq_dtype")
    ]
    return Optimizer(
        moments=sum(4 if dtype == "fp32" else NARROW for dtype in narrow),
        on_host=file.number("megatron.optimizer_offload_fraction") if on_host else 0.0,
        owns_masters=on_host or file.is_on("megatron.use_precision_aware_optimizer"),
    )


def _longest(file: File) -> int:
    return int(file.value("max_prompt_tokens") + file.value("max_response_tokens"))


def _count(file: File) -> int:
    """Engines, in groups or not. ConfigError."""
    groups = file.value("engine_group")
    sizes = [str(group).partition("=")[2] for group in groups]
    if not all(size.isdecimal() for size in sizes):
        raise ConfigError(f"--config {file.path}: engine_group: found {groups}, expected NAME=N each.")
    return sum(map(int, sizes)) if groups else int(file.value("engines"))


def _engines(file: File) -> Engines:
    """Fields of the engine's library by SGLang's names; other engines compute on one GPU."""
    count = _count(file)
    groups = file.value("prompts_per_step") * max(1.0, file.value("over_sample"))
    asked = math.ceil(groups * file.value("group_size") / count)
    most = min(file.value("engine_concurrency"), int(file.number("sglang.max_running_requests", asked)))
    default = SHARE if file.value("placement") == "colocate" and file.value("engine") == "sglang" else None
    share = file.settings.get("sglang.mem_fraction_static", default)
    tensor = int(file.number("sglang.tp_size"))
    parallel = int(file.number("sglang.dp_size")) if file.is_on("sglang.enable_dp_attention") else 1
    if tensor % parallel:
        raise ConfigError(
            f"--config {file.path}: sglang.dp_size: found {parallel}, expected a divisor of sglang.tp_size "
            f"({tensor})."
        )
    return Engines(
        count=count,
        sequences=max(1, min(asked, most)),
        tokens=_longest(file),
        tensor=tensor,
        pipeline=int(file.number("sglang.pp_size")),
        groups=parallel,
        share=float(share) if share is not None else None,
        cache_bytes=1 if str(file.settings.get("sglang.kv_cache_dtype", "")).startswith("fp8") else None,
        is_drafting="sglang.speculative_algorithm" in file.settings,
        total=int(
            file.value("prompts_per_step") * file.value("group_size") * file.value("max_response_tokens")
        ),
    )
