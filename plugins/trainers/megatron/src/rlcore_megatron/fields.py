"""`--megatron.<field>`: one name sets every config class of megatron-core that has it.

A field that would have no effect is refused, never ignored: `rlcore_megatron.source` has a verdict on
each. A value that the run has anyway passes, and says nothing.
"""

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from rlcore import ConfigError, did_you_mean
from rlcore_megatron.config import EXPERT_TENSOR, INDEXER_LOSS, MTP, OF_PROCESS, TENSOR, MegatronConfig
from rlcore_megatron.pipeline import FIRST, LAST, LAYOUT, PIPELINE, UNEVEN, VIRTUAL, flag, layout_rows
from rlcore_megatron.source import FieldVerdict, KnownField, fields_of, known_fields, table

MTP_FACTOR = "mtp_loss_scaling_factor"
GRANULARITY, MODULES = "recompute_granularity", "recompute_modules"
METHOD, COUNT, DISTRIBUTED = "recompute_method", "recompute_num_layers", "distribute_saved_activations"
RECOMPUTED = {MODULES: "selective", METHOD: "full", COUNT: "full", DISTRIBUTED: "full"}
"""Field → the granularity that reads it."""
RECOMPUTE: dict[str, Any] = {GRANULARITY: "full", METHOD: "uniform", COUNT: 1}
"""Only the input of each layer is kept for the backward pass: memory for a third more arithmetic."""
OPTIMIZER, SHARDED = "optimizer", "use_distributed_optimizer"
BALANCE, COEFFICIENT = "moe_router_load_balancing_type", "moe_aux_loss_coeff"
NARROWED: Mapping[str, Any] = {
    BALANCE: Literal["seq_aux_loss", "none"],
    COEFFICIENT: Annotated[float, Field(ge=0)],
    "moe_router_dtype": Literal["fp32"],
    LAYOUT: str | None,
    EXPERT_TENSOR: Annotated[int, Field(ge=1)],
    OPTIMIZER: Literal["adam", "sgd", "muon"],
    "muon_momentum": Annotated[float, Field(gt=0, lt=1)],
    "muon_scale_mode": Literal["spectral", "unit_rms_norm", "shape_scaling"],
    "muon_fp32_matmul_prec": Literal["medium", "highest"],
    "muon_num_ns_steps": Annotated[int, Field(ge=1)],
    "muon_extra_scale_factor": Annotated[float, Field(gt=0)],
    "exp_avg_dtype": Literal["fp32", "bf16", "fp16"],
    "exp_avg_sq_dtype": Literal["fp32", "bf16", "fp16"],
    "optimizer_offload_fraction": Annotated[float, Field(gt=0, le=1)],
    MODULES: list[Literal["core_attn", "mlp", "moe", "shared_experts"]] | None,
    MTP: Annotated[int, Field(ge=1, le=1)],
    MTP_FACTOR: Annotated[float, Field(gt=0)],
    INDEXER_LOSS: Annotated[float, Field(ge=0)],
}
"""Types of fields of which only a part of the values is taken."""
REASONS = {
    BALANCE: "the others depend on which samples share a micro-batch",
    MODULES: "those that discard their output are TransformerEngine's",
    MTP: "checkpoints have one such layer",
    EXPERT_TENSOR: "where it is not given, 1",
    OPTIMIZER: "megatron-core's dist_muon, which shares states layer by layer, saves them for one number of "
    "data-parallel ranks",
}
"""Why other values of them are not taken."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user set, sorted by what takes it. `mtp_factor`: of the loss of multi-token prediction."""

    layout: dict[str, Any]
    transformer: dict[str, Any]
    optimizer: dict[str, Any]
    ddp: dict[str, Any]
    mtp_factor: float


def check_fields(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`overrides` (names with `_` or `-`; values as text or typed) with their values in the fields' types.

    Raises ConfigError, one sentence, for a name that megatron-core lacks, that rlcore owns, or that this
    build cannot honor, and for a value of the wrong type or out of place. Checked fields pass unchanged.
    """
    checked = {}
    for spelling, value in overrides.items():
        name = spelling.replace("-", "_")
        if _is_taken(name, value):
            checked[name] = _parse(name, value)
    _check_conditions(checked)
    _check_optimizer(checked)
    _check_pipeline(checked)
    _check_balance(checked)
    _check_recompute(checked)
    if checked.get("sequence_parallel") and checked.get("tensor_model_parallel_size", 1) == 1:
        raise ConfigError(
            f"{flag('sequence_parallel')} needs {flag('tensor_model_parallel_size')} 2 or more: "
            "it splits the sequence over the tensor-parallel ranks."
        )
    return checked


def _check_conditions(checked: Mapping[str, Any]) -> None:
    """Nothing is given without what it belongs to."""
    for name in checked:
        for other, wanted in table()[name].under.items():
            values = wanted if isinstance(wanted, list) else [wanted]
            if checked.get(other, known_fields()[other].default) not in values:
                needed = " or ".join(map(_text, values))
                raise ConfigError(f"{flag(name)} would have no effect without {flag(other)} {needed}.")


def _check_optimizer(checked: dict[str, Any]) -> None:
    """Adam's states are divided over data-parallel ranks, those of others are not."""
    kind = checked.get(OPTIMIZER, "adam")
    sharded = checked.get(SHARDED, kind == "adam")
    if sharded and kind != "adam":
        raise ConfigError(f"{flag(OPTIMIZER)} {kind}: found {flag(SHARDED)} true, which takes adam alone.")
    if kind != "adam":
        checked[SHARDED] = False
    for name in ("optimizer_cpu_offload", "use_precision_aware_optimizer", "overlap_param_gather"):
        if checked.get(name) and not sharded:
            raise ConfigError(f"{flag(name)} needs {flag(SHARDED)} true.")


def _check_pipeline(checked: dict[str, Any]) -> None:
    """What divides a pipeline fits the others; the layout's chunks become those of a virtual pipeline."""
    stages = checked.get(PIPELINE, 1)
    for name in (VIRTUAL, *UNEVEN):
        if checked.get(name) and stages == 1:
            raise ConfigError(
                f"{flag(name)} needs {flag(PIPELINE)} 2 or more: it divides the layers of its stages."
            )
    uneven = [name for name in UNEVEN if checked.get(name)]
    if len(uneven) > 1 and not (set(uneven) <= {FIRST, LAST} or {FIRST, LAST, LAYOUT}.isdisjoint(uneven)):
        raise ConfigError(
            f"{flag(uneven[0])} and {flag(uneven[-1])} divide the layers in two ways: give one of them."
        )
    if checked.get(LAYOUT):
        chunks = len(layout_rows(checked)) // stages
        if checked.get(VIRTUAL, chunks) != chunks:
            raise ConfigError(
                f"{flag(VIRTUAL)}: found {checked[VIRTUAL]}, but {flag(LAYOUT)} gives each stage {chunks} "
                "chunks; leave it out."
            )
        if chunks > 1:
            checked[VIRTUAL] = chunks


def _check_balance(checked: dict[str, Any]) -> None:
    """The balancing loss and its coefficient come together; switched off, neither says anything."""
    kind, coefficient = checked.get(BALANCE), checked.get(COEFFICIENT)
    if kind == "none" and coefficient:
        raise ConfigError(
            f"{flag(COEFFICIENT)}: found {coefficient} with {flag(BALANCE)} none, expected seq_aux_loss."
        )
    if kind == "none" or coefficient == 0:
        checked.pop(BALANCE, None)
        checked.pop(COEFFICIENT, None)
    elif (kind is None) != (coefficient is None):
        raise ConfigError(
            f"{flag(BALANCE)} seq_aux_loss and {flag(COEFFICIENT)} come together: give both, or neither."
        )


def _check_recompute(checked: dict[str, Any]) -> None:
    """Each field belongs to one granularity, and any of them turns the default of a GPU off.

    The granularity full alone is that default.
    """
    granularity = checked.get(GRANULARITY)
    for name, wanted in RECOMPUTED.items():
        if checked.get(name) and granularity != wanted:
            raise ConfigError(f"{flag(name)} would have no effect without {flag(GRANULARITY)} {wanted}.")
    if granularity == "full":
        checked |= {name: value for name, value in RECOMPUTE.items() if not checked.get(name)}
    if checked.get(DISTRIBUTED) and checked.get(TENSOR, 1) == 1:
        raise ConfigError(
            f"{flag(DISTRIBUTED)} needs {flag(TENSOR)} 2 or more: it divides what waits over these ranks."
        )
    if checked.get(DISTRIBUTED) and checked.get("sequence_parallel"):
        raise ConfigError(
            f"{flag(DISTRIBUTED)} would have no effect with {flag('sequence_parallel')}, "
            "which divides what waits already."
        )


def split(fields: Mapping[str, Any]) -> Settings:
    """Checked `fields`, sorted by what takes them."""

    def of(config: str) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name in fields_of(config)}

    # mbridge tells a model of the process groups that there are
    others = {name for name in OF_PROCESS if name != "sequence_parallel"} | {MTP_FACTOR}
    transformer = {name: value for name, value in of("TransformerConfig").items() if name not in others}
    return Settings(
        layout={name: fields[name] for name in OF_PROCESS if name in fields},
        transformer=transformer,
        optimizer=of("OptimizerConfig"),
        ddp=of("DistributedDataParallelConfig"),
        mtp_factor=fields.get(MTP_FACTOR, known_fields()[MTP_FACTOR].default),
    )


def _is_taken(name: str, value: Any) -> bool:
    """Whether the field takes its value; False where the run has the value anyway. ConfigError otherwise."""
    fields = known_fields()
    if name not in fields:
        raise ConfigError(f"{flag(name)} is no field of megatron-core.{_suggest(name)}")
    verdict = table().get(name)
    assert verdict is not None, f"fields.toml has no verdict on {name}: tests hold it to megatron's fields"
    if verdict.kind == "honored":
        return True
    if _is_had(verdict, fields[name], value):
        return False
    if verdict.kind == "needs":
        if missing := _missing(verdict):
            raise ConfigError(f"{flag(name)} {value} needs {missing}, which is not here.")
        return True
    if verdict.flag:
        raise ConfigError(f"{flag(name)} is set by rlcore: use {verdict.flag}.")
    if verdict.kind == "model":
        raise ConfigError(f"{flag(name)} cannot be set: it belongs to the model, whose config.json says it.")
    fault = "cannot be honored" if verdict.kind == "decided" else "would have no effect"
    raise ConfigError(f"{flag(name)} {value} {fault}: {verdict.why}.")


def _missing(verdict: FieldVerdict) -> str:
    """What a field needs and does not find."""
    if importlib.util.find_spec(verdict.library) is None:
        return verdict.called
    import torch  # takes seconds

    return "" if torch.cuda.is_available() else "a GPU"


def _is_had(verdict: FieldVerdict, field: KnownField, value: Any) -> bool:
    """Whether the run has this value of a field that takes none."""
    values = verdict.values
    if values is None:
        # a flag or the model may say something else than megatron-core's default
        is_default = not verdict.flag and verdict.kind != "model"
        values = [field.default] if is_default else []
    # AttnBackend.auto as "auto" too
    shorts = [known.rpartition(".")[2] for known in values if isinstance(known, str)]
    return _plain(value) in set(map(_plain, [*values, *shorts]))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(value: Any) -> str:
    """A text that is the same for `true` and True, 0 and "0.0"."""
    text = str(value).lower()
    try:
        return str(float(text))
    except ValueError:
        return text


def _parse(name: str, value: Any) -> Any:
    kind = NARROWED[name] if name in NARROWED else known_fields()[name].type
    if isinstance(value, str):
        if value.lower() == "none" and (name not in NARROWED or type(None) in get_args(kind)):
            value = None
        elif "list" in str(kind).lower():
            value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        parsed = TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        why = f" ({REASONS[name]})" if name in REASONS else ""
        raise ConfigError(f"{flag(name)} {value!r}: {error.errors()[0]['msg']}{why}.") from error
    positive = name.endswith("_size") or name in (FIRST, LAST, COUNT)
    if positive and isinstance(parsed, int) and parsed < 1:
        raise ConfigError(f"{flag(name)} {value!r}: must be 1 or more.")
    return parsed


def _suggest(name: str) -> str:
    if name in MegatronConfig.synonyms:
        return f" Did you mean {flag(MegatronConfig.synonyms[name])}?"
    return did_you_mean(name.replace("_", "-"), [known.replace("_", "-") for known in sorted(known_fields())])
