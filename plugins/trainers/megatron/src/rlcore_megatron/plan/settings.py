"""From the settings of a run to what is planned: its layout, and what its trainer does with the GPUs."""

import math
from collections.abc import Iterator
from dataclasses import replace

from rlcore import START, ModelFacts
from rlcore_megatron.config import INDEXER_LOSS
from rlcore_megatron.pipeline import chunk_layers
from rlcore_megatron.plan.adapters import Adapted
from rlcore_megatron.plan.layout import Layout, Recompute
from rlcore_megatron.plan.memory import (
    CRITIC,
    REFERENCE,
    TEACHER,
    Apart,
    Beside,
    Optimizer,
    Workload,
)
from rlcore_megatron.plan.phases import Run
from rlcore_toolkit import BUCKET_MB, MB, Fields, RunFile, read_facts

SGD_MOMENTUM = 0.9
"""megatron-core's default."""
NARROW = 2
"""Bytes of a moment in bf16 or fp16."""
CORE_ATTENTION = "core_attn"
"""What megatron-core computes again of a layer where no module is named."""
DISTRIBUTED = "distribute_saved_activations"


def layout_of(file: RunFile, facts: ModelFacts) -> Layout:
    """The policy's own, as its trainer reads it. ConfigError."""
    file.check_trainer()
    file.check_adapter()
    fields = file.role("")
    ranks = file.settings.get("ranks", file.trainer.model_ranks(fields.values))
    return _layout(file, fields, facts, file.whole_number("ranks", ranks))


def _layout(file: RunFile, fields: Fields, facts: ModelFacts, world: int) -> Layout:
    chunks = chunk_layers(fields.values, facts.layers)
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


def apart_of(file: RunFile, facts: ModelFacts) -> Iterator[Apart]:
    """The roles that have workers of their own. ConfigError."""
    for role in (CRITIC, REFERENCE, TEACHER):
        if ranks := int(file.value(f"{role}.ranks")):
            fields, own = file.role(role), _facts_of(file, role, facts)
            layout = replace(_layout(file, fields, own, ranks), mtp=False)  # the policy's alone
            optimizer = optimizer_of(fields) if role == CRITIC else None
            work = workload(file, layout)
            yield Apart(role=role, facts=own, layout=layout, work=work, optimizer=optimizer)


def trained_by(file: RunFile, facts: ModelFacts, layout: Layout) -> Run:
    """What the run's trainer does, without engines. Of `layout` only its work depends. ConfigError."""
    adapters = Adapted.of(file.run, facts)
    is_there = {
        CRITIC: file.has_critic,
        REFERENCE: file.has_reference,
        TEACHER: bool(file.value("teacher.model")),
    }
    shared = [role for role in is_there if is_there[role] and not file.value(f"{role}.ranks")]
    return Run(
        work=workload(file, layout),
        optimizer=replace(optimizer_of(file.role("")), adapters=adapters),
        roles=tuple(_beside(file, role, facts) for role in shared),
        apart=tuple(apart_of(file, facts)),
        is_colocated=file.value("placement") == "colocate",
        sleep=file.value("sleep"),
        bucket=int(file.fields("engine").number("bucket_mb", BUCKET_MB) * MB),
    )


def _facts_of(file: RunFile, role: str, facts: ModelFacts) -> ModelFacts:
    """The sizes of a role's model; `facts`: of the policy, from which it may start. ConfigError."""
    model = file.value(f"{role}.model")
    return facts if model in ("", START) else read_facts(model, file.registry)


def _beside(file: RunFile, role: str, facts: ModelFacts) -> Beside:
    """The model of a role on the policy's workers, whose model has `facts`. ConfigError."""
    own = _facts_of(file, role, facts)
    fields, table = file.role(role), f"{role}.{file.trainer.table}"
    chunks = chunk_layers(fields.values, own.layers)
    return Beside(
        role=role,
        facts=own,
        optimizer=optimizer_of(fields) if role == CRITIC else None,
        is_swapped=role == REFERENCE and file.value("reference.placement") == "swapped",
        stages=tuple(sum(each) for each in chunks),
        recompute=_recompute(fields),
        owns_recompute=any(_is_of_recompute(name) for name in file.fields(table).values),
    )


def workload(file: RunFile, layout: Layout) -> Workload:
    """The work of each optimizer step under `layout`."""
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
    teaches = fields.number(INDEXER_LOSS, 0) > 0
    has_narrow = fields.text("grad_reduce_in_fp32", "true").lower() == "false"
    moments = sum(4 if dtype == "fp32" else NARROW for dtype in narrow)
    if kind == "sgd":
        moments = 4 if fields.number("sgd_momentum", SGD_MOMENTUM) else 0
    return Optimizer(
        moments=moments,
        of_matrices=4 if kind == "muon" else None,
        is_sharded=kind == "adam" and fields.text("use_distributed_optimizer", "true").lower() == "true",
        on_host=fields.number("optimizer_offload_fraction") if on_host else 0.0,
        owns_masters=on_host or fields.is_on("use_precision_aware_optimizer"),
        has_narrow_gradients=has_narrow,
        teaches_indexers=teaches,
    )
