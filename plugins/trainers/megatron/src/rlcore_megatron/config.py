"""What the megatron trainer says of itself: its table, and what of a run or a model does not fit it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from rlcore import Ability, ConfigError, TrainerConfig, expert_count, flag_name
from rlcore_megatron.pipeline import (
    PIPELINE,
    TABLE,
    UNEVEN,
    VIRTUAL,
    chunk_layers,
    flag,
    is_on,
    model_order,
    size,
)
from rlcore_megatron.source import folder_of, table
from rlcore_toolkit import expert_width, indexed_layers

if TYPE_CHECKING:
    from rlcore import RunConfig

TENSOR = "tensor_model_parallel_size"
CONTEXT, EXPERT = "context_parallel_size", "expert_model_parallel_size"
EXPERT_TENSOR = "expert_tensor_parallel_size"
BALANCE = "moe_router_load_balancing_type"
INDEXER_LOSS = "dsa_indexer_loss_coeff"
MTP, OF_MTP = "mtp_num_layers", "num_nextn_predict_layers"
"""The setting for a layer for multi-token prediction, and in config.json how many of them there are."""
OF_MTP_BESIDE = "mtp_num_hidden_layers"
"""The same in Qwen3.5's config.json, whose files hold them beside the decoder."""

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
    preload: ClassVar[tuple[str, ...]] = ("rlcore_megatron.mcore", "rlcore_megatron.mcore.role.role")
    bridge_suite: ClassVar[str] = "rlcore_megatron.testing.bridges:BridgeConformance"
    planner: ClassVar[str] = "rlcore_megatron.plan.planner:MegatronPlanner"
    abilities: ClassVar[frozenset[Ability]] = frozenset(
        {
            *(Ability.RANKS, Ability.VALUES, Ability.SCORERS, Ability.OWN_RANKS),
            *(Ability.SWAPPED, Ability.REFRESH, Ability.SLEEP),
            *(Ability.ROUTING_REPLAY, Ability.INDEXER_REPLAY),
            *(Ability.TOP_TOKENS, Ability.MODEL_HOOKS, Ability.OWN_WEIGHTS),
            *(Ability.ADAPTERS, Ability.POLICIES),
        }
    )
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
        return table()

    def model_ranks(self, fields: Mapping[str, Any]) -> int:
        """Ranks that hold one replica of the model, its experts included."""
        dense = size(fields, TENSOR) * size(fields, CONTEXT)
        sparse = size(fields, EXPERT) * size(fields, EXPERT_TENSOR)
        return math.lcm(dense, sparse) * size(fields, PIPELINE)

    def complaints(self, run: RunConfig, fields: Mapping[str, Any], roles: Collection[str]) -> Iterable[str]:
        """A swapped reference takes weights that are there, and only layers of the decoder have adapters."""
        if run.has_overlay and MTP in fields:
            yield f"{flag(MTP)}: found {fields[MTP]} with --lora.rank, which has no such layer; leave it out."
        if run.has_overlay and float(fields.get(INDEXER_LOSS) or 0):
            found = f"{flag(INDEXER_LOSS)}: found {fields[INDEXER_LOSS]} with --lora.rank"
            yield f"{found}, which leaves indexers frozen; leave it out."
        if run.has_overlay and run.reference.refresh_every:
            found = f"--reference.refresh-every: found {run.reference.refresh_every}"
            yield f"{found}, but --trainer megatron copies no adapter into another model; leave it out."
        is_late = is_on(fields, "overlap_param_gather")
        if run.reference.placement == "swapped" and is_late:
            yield (
                "--reference.placement: found swapped with --megatron.overlap-param-gather, which fills in "
                "weights late; expected resident."
            )

    def left_out(self, fields: Mapping[str, Any], hf_config: Mapping[str, Any]) -> str | None:
        """What is not trained beside the decoder, and whether indexers learn."""
        beside = ["a vision tower"] if hf_config.get("vision_config") else []
        if hf_config.get(OF_MTP_BESIDE) and MTP not in fields:
            beside.append(f"a layer for multi-token prediction, which {flag(MTP)} 1 trains")
        if beside:
            return f"Published and saved as it came: {'; '.join(beside)}."
        layers, notes = hf_config.get(OF_MTP), []
        if layers and MTP not in fields:
            notes.append(
                f"Left out: layers for multi-token prediction ({layers}), neither trained, published nor "
                f"saved; {flag(MTP)} 1 keeps one."
            )
        if indexed_layers(hf_config):
            factor = float(fields.get(INDEXER_LOSS) or 0)
            frozen = f"The indexers of sparse attention are frozen; {flag(INDEXER_LOSS)} trains them."
            notes.append(frozen if not factor else f"The indexers of sparse attention learn ({factor:g}).")
        return " ".join(notes) or None

    def beside_complaints(
        self, role: str, policy: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Iterable[str]:
        """The process groups of a worker are those of all its models."""
        for name, value in own.items():
            if name in OF_PROCESS and str(policy.get(name, "")).lower() != str(value).lower():
                yield (
                    f"{flag_name(f'{role}.{TABLE}.{name}')}: the {role} is on the policy's workers, whose "
                    f"layout is that of {flag(name)}; add --{role}.ranks."
                )

    def model_complaints(
        self, run: RunConfig, fields: Mapping[str, Any], hf_config: Mapping[str, Any]
    ) -> Iterable[str]:
        """A layout divides what the model has."""
        parts = size(fields, TENSOR)
        yield from undivided({name: hf_config.get(name) for name in DIVIDED}, parts)
        both = parts * size(fields, CONTEXT)
        for name, heads in _delta_heads(hf_config).items():
            if isinstance(heads, int) and heads % both:
                yield (
                    f"{flag(TENSOR)} times {flag(CONTEXT)}: found {both}, "
                    f"expected a divisor of the model's {name} ({heads})."
                )
        if MTP in fields and mtp_layers(hf_config) != size(fields, MTP):
            yield f"{flag(MTP)}: found {fields[MTP]}, but the model's {OF_MTP} is {mtp_layers(hf_config)}."
        yield from _pipeline_complaints(fields, hf_config.get("num_hidden_layers"))
        yield from _indexer_complaints(fields, hf_config)
        yield from _expert_complaints(fields, hf_config)
        yield from _unknown_type(hf_config)


def undivided(counts: Mapping[str, Any], parts: int) -> Iterator[str]:
    """What of `DIVIDED` cannot be divided by `parts` tensor-parallel ranks, where its number is known."""
    for name, count in counts.items():
        if isinstance(count, int) and count % parts:
            yield f"{flag(TENSOR)}: found {parts}, expected a divisor of the model's {name} ({count})."


def mtp_layers(hf_config: Mapping[str, Any]) -> int:
    """Layers for multi-token prediction that the checkpoint of this config has."""
    return int(hf_config.get(OF_MTP) or hf_config.get(OF_MTP_BESIDE) or 0)


def _delta_heads(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Heads of gated delta nets, by the names that families give their number."""
    of_kimi = hf_config.get("linear_attn_config") or {}  # as Kimi-Linear is published
    return {
        "linear_num_key_heads": hf_config.get("linear_num_key_heads"),
        "linear_num_heads": hf_config.get("linear_num_heads", of_kimi.get("num_heads")),
    }


def _unknown_type(hf_config: Mapping[str, Any]) -> Iterator[str]:
    """A model may bring code of its own for its config, which is not run: transformers must know the type."""
    kind = hf_config.get("model_type")
    if "auto_map" not in hf_config or folder_of(f"transformers.models.{kind}") is not None:
        return
    from transformers import CONFIG_MAPPING  # takes seconds

    if kind not in CONFIG_MAPPING:
        yield (
            f"--model: found model_type {kind!r}, which transformers knows only by code from the model's "
            "repository, and rlcore does not run such code; if the architecture is that of another type, "
            "write that type into a copy of config.json, without auto_map."
        )


def _pipeline_complaints(fields: Mapping[str, Any], layers: Any) -> Iterator[str]:
    if isinstance(layers, int):
        try:
            chunk_layers(fields, layers)
        except ConfigError as error:
            yield str(error)


def _indexer_complaints(fields: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """What a layer's indexer chose does not leave its chunk of a stage."""
    indexed = indexed_layers(config)
    if not indexed:
        if INDEXER_LOSS in fields:
            yield f"{flag(INDEXER_LOSS)}: the model has no indexer; leave it out."
        return
    try:
        first = 0
        for stage, count in model_order(fields, int(config["num_hidden_layers"])):
            if count and first not in indexed:
                yield (
                    f"{flag(PIPELINE)}: stage {stage} starts on layer {first} (from 0), which takes the keys "
                    f"that an earlier layer's indexer chose; expected a start on one of {sorted(indexed)}."
                )
            first += count
    except ConfigError:
        return  # `_pipeline_complaints` says so


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
    shared = config.get("shared_expert_intermediate_size") or (config.get("n_shared_experts") or 0) * width
    if shared % tensor:
        yield f"{start}, expected a divisor of the size of the model's shared experts ({shared})."
    if tensor > 1 and not is_on(fields, "sequence_parallel"):
        yield f"{start} for a model with experts, which needs {flag('sequence_parallel')} true as well."
