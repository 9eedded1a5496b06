"""What the megatron trainer says of itself: its table, and what of a run or a model does not fit it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rlcore import ConfigError, TrainerConfig, expert_count, expert_width, flag_name
from rlcore_megatron import field_table
from rlcore_megatron.pipeline import PIPELINE, TABLE, UNEVEN, VIRTUAL, chunk_layers, flag, is_on, size
from rlcore_megatron.source import folder_of

if TYPE_CHECKING:
    from rlcore import RunConfig

TENSOR = "tensor_model_parallel_size"
CONTEXT, EXPERT = "context_parallel_size", "expert_model_parallel_size"
EXPERT_TENSOR = "expert_tensor_parallel_size"
BALANCE = "moe_router_load_balancing_type"
MTP, OF_MTP = "mtp_num_layers", "num_nextn_predict_layers"
"""The setting for a layer for multi-token prediction, and in config.json how many of them there are."""

OF_PROCESS = (TENSOR, PIPELINE, VIRTUAL, CONTEXT, EXPERT, EXPERT_TENSOR, "sequence_parallel")
"""The fields that lay out the process groups of a worker."""

DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
"""What of config.json tensor parallelism divides."""


class MegatronConfig(TrainerConfig):
    """No settings of its own: megatron-core's have the table `--megatron.<field>`."""

    table: ClassVar[str] = TABLE
    fields_of: ClassVar[str] = "megatron-core's config classes"
    synonyms: ClassVar[Mapping[str, str]] = {
        "tp": TENSOR,
        "pp": PIPELINE,
        "cp": CONTEXT,
        "ep": EXPERT,
        "etp": EXPERT_TENSOR,
        **{name: name for name in (TENSOR, PIPELINE, CONTEXT, EXPERT, EXPERT_TENSOR)},
    }
    libraries: ClassVar[tuple[str, ...]] = ("megatron-core",)
    preload: ClassVar[tuple[str, ...]] = ("rlcore_megatron.mcore", "rlcore_megatron.mcore.role")
    bridge_suite: ClassVar[str] = "rlcore_megatron.testing.bridges:BridgeConformance"
    sleeps: ClassVar[bool] = True
    layout_fields: ClassVar[frozenset[str]] = frozenset(
        (
            *OF_PROCESS,
            *UNEVEN,
            *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
            "distribute_saved_activations",
        )
    )

    def field_names(self) -> Collection[str]:
        """Those of the table of verdicts."""
        return field_table.table()

    def model_ranks(self, fields: Mapping[str, Any]) -> int:
        """Ranks that hold one replica of the model, its experts included."""
        dense = size(fields, TENSOR) * size(fields, CONTEXT)
        sparse = size(fields, EXPERT) * size(fields, EXPERT_TENSOR)
        return math.lcm(dense, sparse) * size(fields, PIPELINE)

    def complaints(self, run: RunConfig, fields: Mapping[str, Any], roles: Collection[str]) -> Iterable[str]:
        """A swapped reference takes weights that are there."""
        is_late = is_on(fields, "overlap_param_gather")
        if run.kl.reference_placement == "swapped" and is_late:
            yield (
                "--reference-placement: found swapped with --megatron.overlap-param-gather, which fills in "
                "weights late; expected resident."
            )

    def stage_layers(self, fields: Mapping[str, Any], layers: int) -> Sequence[Sequence[int]]:
        """Even, or as the fields say."""
        return chunk_layers(fields, layers)

    def left_out(self, fields: Mapping[str, Any], hf_config: Mapping[str, Any]) -> str | None:
        """A layer for multi-token prediction, unless it is asked for."""
        layers = hf_config.get(OF_MTP)
        if not layers or MTP in fields:
            return None
        return (
            f"Left out: layers for multi-token prediction ({layers}), neither trained, published nor saved; "
            f"{flag(MTP)} 1 keeps one."
        )

    def beside_complaints(
        self, role: str, policy: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Iterable[str]:
        """The process groups of a worker are those of all its models."""
        for name, value in own.items():
            if name in OF_PROCESS and str(policy.get(name, "")).lower() != str(value).lower():
                yield (
                    f"{flag_name(f'{role}.{TABLE}.{name}')}: the {role} is on the policy's workers, whose "
                    f"layout is that of {flag(name)}; add --{role}-ranks."
                )

    def model_complaints(
        self, run: RunConfig, fields: Mapping[str, Any], hf_config: Mapping[str, Any]
    ) -> Iterable[str]:
        """A layout divides what the model has."""
        parts = size(fields, TENSOR)
        for name in DIVIDED:
            count = hf_config.get(name)
            if isinstance(count, int) and count % parts:
                yield f"{flag(TENSOR)}: found {parts}, expected a divisor of the model's {name} ({count})."
        if MTP in fields and hf_config.get(OF_MTP, 0) != size(fields, MTP):
            yield f"{flag(MTP)}: found {fields[MTP]}, but the model's {OF_MTP} is {hf_config.get(OF_MTP, 0)}."
        yield from _pipeline_complaints(fields, hf_config.get("num_hidden_layers"))
        yield from _expert_complaints(fields, hf_config)
        yield from _unknown_type(hf_config)


def _unknown_type(hf_config: Mapping[str, Any]) -> Iterator[str]:
    """A model may bring code of its own for its config, which is not run: transformers must know the type."""
    kind = hf_config.get("model_type")
    if "auto_map" not in hf_config or folder_of(f"transformers.models.{kind}") is not None:
        return
    from transformers import CONFIG_MAPPING  # takes seconds

    if kind not in CONFIG_MAPPING:
        yield (
            f"--model: found model_type {kind!r}, which transformers knows only by code from the model's "
            "repository, and rlcore does not run such code; if the architecture is that of another type "
            "(Kimi-K2 is deepseek_v3), write that type into a copy of config.json, without auto_map."
        )


def _pipeline_complaints(fields: Mapping[str, Any], layers: Any) -> Iterator[str]:
    if isinstance(layers, int):
        try:
            chunk_layers(fields, layers)
        except ConfigError as error:
            yield str(error)


def _expert_complaints(fields: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """A model with experts is divided differently; a dense one has none to divide."""
    experts, parts, tensor = expert_count(config), size(fields, EXPERT), size(fields, TENSOR)
    if not experts:
        if BALANCE in fields:
            yield f"{flag(BALANCE)}: the model has no experts; leave it out."
        for name in (EXPERT, EXPERT_TENSOR):
            if size(fields, name) > 1:
                yield f"{flag(name)}: found {size(fields, name)}, but the model has no experts; leave it out."
        return
    if experts % parts:
        yield f"{flag(EXPERT)}: found {parts}, expected a divisor of the model's experts ({experts})."
    width, cut = expert_width(config), size(fields, EXPERT_TENSOR)
    if width % cut:
        yield f"{flag(EXPERT_TENSOR)}: found {cut}, expected a divisor of the size of an expert ({width})."
    start = f"{flag(TENSOR)}: found {tensor}"
    shared = (config.get("n_shared_experts") or 0) * width
    if shared % tensor:
        yield f"{start}, expected a divisor of the size of the model's shared experts ({shared})."
    if tensor > 1 and not is_on(fields, "sequence_parallel"):
        yield f"{start} for a model with experts, which needs {flag('sequence_parallel')} true as well."
