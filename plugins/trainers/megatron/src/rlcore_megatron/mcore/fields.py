"""`--megatron.<field>`: one name sets every config class of megatron-core that has it.

A field that would have no effect in this build is refused, never ignored: what is honored is listed here.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import TransformerConfig
from pydantic import Field, TypeAdapter, ValidationError

from rlcore import ConfigError, did_you_mean

LAYOUT = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "sequence_parallel",
)
"""The fields that `rlcore_megatron.mcore.parallel.start` takes."""

TRANSFORMER = (
    "sequence_parallel",
    "deterministic_mode",
    "batch_p2p_comm",
    "batch_p2p_sync",
    "deallocate_pipeline_outputs",
    "fp32_residual_connection",
    "bias_activation_fusion",
    "bias_dropout_fusion",
    "disable_bf16_reduced_precision_matmul",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "moe_router_load_balancing_type",
    "moe_aux_loss_coeff",
    "distribute_saved_activations",
)
OPTIMIZER = (
    "adam_beta1",
    "adam_beta2",
    "adam_eps",
    "decoupled_weight_decay",
    "apply_wd_to_qk_layernorm",
    "use_distributed_optimizer",
    "overlap_param_gather",
)
DDP = (
    "use_distributed_optimizer",
    "grad_reduce_in_fp32",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "align_param_gather",
    "bucket_size",
    "pad_buckets_for_high_nccl_busbw",
)
NARROWED: Mapping[str, Any] = {
    "moe_router_load_balancing_type": Literal["seq_aux_loss"],
    "moe_aux_loss_coeff": Annotated[float, Field(gt=0)],
}
"""Types of fields of which only a part of the values is taken."""
HONORED = frozenset((*LAYOUT, *TRANSFORMER, *OPTIMIZER, *DDP))

OWNED: Mapping[str, str] = {
    "lr": "--lr",
    "min_lr": "--lr-schedule",
    "decoupled_lr": "--lr",
    "decoupled_min_lr": "--lr-schedule",
    "weight_decay": "--weight-decay",
    "clip_grad": "--clip-grad",
    "bf16": "--dtype",
    "fp16": "--dtype",
    "params_dtype": "--dtype",
    "pipeline_dtype": "--dtype",
    "autocast_dtype": "--dtype",
    "enable_autocast": "--dtype",
}
"""What rlcore sets itself, and the flag that sets it."""

OF_THE_MODEL = frozenset(
    (
        "num_layers",
        "hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "ffn_hidden_size",
        "kv_channels",
        "layernorm_epsilon",
        "add_bias_linear",
        "add_qkv_bias",
        "gated_linear_unit",
        "activation_func",
        "normalization",
        "qk_layernorm",
        "num_moe_experts",
        "moe_layer_freq",
        "moe_ffn_hidden_size",
        "moe_shared_expert_intermediate_size",
        "moe_router_topk",
        "moe_router_num_groups",
        "moe_router_group_topk",
        "moe_router_score_function",
        "moe_router_pre_softmax",
        "moe_router_topk_scaling_factor",
        "moe_router_enable_expert_bias",
        "multi_latent_attention",
        "rotary_interleaved",
        "softmax_scale",
    )
)
"""What the model's config.json says."""

BALANCE, COEFFICIENT = "moe_router_load_balancing_type", "moe_aux_loss_coeff"
NOT_BY_ITSELF = "the others depend on which samples share a micro-batch"

REASONS: Mapping[str, str] = {
    r"fp8|fp4|first_last_layers_bf16|num_layers_at_|mxfp8": "it needs TransformerEngine's fp8 or fp4",
    r"tp_comm|^use_te|te_rng|activation_func_|_fusion$|fused|cpu_offloading|cuda_graph|attention_backend|"
    r"precision_aware|transformer_impl|kitchen|symmetric|persist_layer": "it needs TransformerEngine or apex",
    r"context_parallel|cp_comm|dp_cp|hierarchical": "context parallelism has one form here: keys and values "
    "are gathered",
    r"z_loss|bias_update": "beside the policy only --megatron.moe-router-load-balancing-type seq_aux_loss "
    "moves the router: it alone does not depend on how a batch is divided",
    r"expert_tensor": "experts are divided by --megatron.expert-model-parallel-size, and none is cut",
    r"^moe_|expert|deepep": "rlcore's layers of experts do not use it",
    r"_vp_|overlap_p2p|first_pipeline_stage|last_pipeline_stage|pipeline_model_parallel_layout|"
    r"_pipeline_split": "pipeline stages are of equal size here",
    r"^mtp_": "layers for multi-token prediction are left out of every model",
    r"dropout": "with dropout, old and new log-probs would be those of different models",
    r"inference|flash_decode|prefill": "it is for inference, and an engine generates",
    r"loss": "rlcore's objective owns the loss and its reduction",
}
"""Why others are refused: the first pattern that is found in the name tells."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Checked fields, by what takes them. A field that several take is in each."""

    layout: dict[str, Any]
    transformer: dict[str, Any]
    optimizer: dict[str, Any]
    ddp: dict[str, Any]


def check_fields(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`overrides` (names with `_` or `-`; values as text or typed) with their values in the fields' types.

    Raises ConfigError, one sentence, for a name that megatron-core lacks, that rlcore owns, or that this
    build cannot honor, and for a value of the wrong type or out of place. Checked fields pass unchanged.
    """
    checked = {}
    for given, value in overrides.items():
        name = given.replace("-", "_")
        _check_name(name, value)
        if name in HONORED:
            checked[name] = _parse(name, value)
    if checked.get("sequence_parallel") and checked.get("tensor_model_parallel_size", 1) == 1:
        raise ConfigError(
            f"{_flag('sequence_parallel')} needs {_flag('tensor_model_parallel_size')} 2 or more: "
            "it splits the sequence over the tensor-parallel ranks."
        )
    if (
        checked.get("virtual_pipeline_model_parallel_size")
        and checked.get("pipeline_model_parallel_size", 1) == 1
    ):
        raise ConfigError(
            f"{_flag('virtual_pipeline_model_parallel_size')} needs "
            f"{_flag('pipeline_model_parallel_size')} 2 or more: it divides the layers of each stage."
        )
    if (BALANCE in checked) != (COEFFICIENT in checked):
        raise ConfigError(
            f"{_flag(BALANCE)} seq_aux_loss and {_flag(COEFFICIENT)} come together: give both, or neither."
        )
    return checked


def split(fields: Mapping[str, Any]) -> Settings:
    """Checked `fields`, sorted by what takes them."""

    def of(names: tuple[str, ...]) -> dict[str, Any]:
        return {name: fields[name] for name in names if name in fields}

    return Settings(layout=of(LAYOUT), transformer=of(TRANSFORMER), optimizer=of(OPTIMIZER), ddp=of(DDP))


def _check_name(name: str, value: Any) -> None:
    if name in HONORED:
        return
    types = _types()
    if name not in types:
        raise ConfigError(f"{_flag(name)} is no field of megatron-core.{_suggest(name)}")
    if name in OWNED:
        raise ConfigError(f"{_flag(name)} is set by rlcore: use {OWNED[name]}.")
    if name in OF_THE_MODEL:
        raise ConfigError(f"{_flag(name)} cannot be set: it belongs to the model, whose config.json says it.")
    if name == "expert_tensor_parallel_size" and _parse(name, value) == 1:
        return
    reason = next((why for pattern, why in REASONS.items() if re.search(pattern, name)), None)
    raise ConfigError(f"{_flag(name)} cannot be honored: {reason or 'this build does not use it'}.")


def _parse(name: str, value: Any) -> Any:
    kind = NARROWED.get(name, _types()[name])
    if isinstance(value, str):
        if value.lower() == "none":
            value = None
        elif "list" in str(kind).lower():
            value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        parsed = TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        why = f" ({NOT_BY_ITSELF})" if name == BALANCE else ""
        raise ConfigError(f"{_flag(name)} {value!r}: {error.errors()[0]['msg']}{why}.") from error
    if name.endswith("_size") and isinstance(parsed, int) and parsed < 1:
        raise ConfigError(f"{_flag(name)} {value!r}: must be 1 or more.")
    return parsed


def _types() -> dict[str, Any]:
    """Each field of megatron-core's config classes and its type."""
    found: dict[str, Any] = {}
    for config in (DistributedDataParallelConfig, OptimizerConfig, TransformerConfig):
        hints = typing.get_type_hints(config)
        found.update({field.name: hints[field.name] for field in dataclasses.fields(config)})
    return found


def _flag(name: str) -> str:
    return f"--megatron.{name.replace('_', '-')}"


def _suggest(name: str) -> str:
    return did_you_mean(name.replace("_", "-"), [known.replace("_", "-") for known in sorted(_types())])
