"""What the trainer says of itself: its settings, and what of a run or a model does not fit it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from rlcore import BASE, START, Ability, TrainerConfig, fp8_block

if TYPE_CHECKING:
    from rlcore import RunConfig

FP8_BLOCK = (128, 128)
"""Rows and columns of a weight in FP8 that share a scale, as published ones have it."""
DRAFT_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "n_mtp_layers")
"""In config.json, how many layers for multi-token prediction there are."""


def nf4_complaint() -> str | None:
    """Why nothing can be quantized here; None: bitsandbytes is installed, in a version that can."""
    try:
        found = version("bitsandbytes")
    except PackageNotFoundError:
        found = ""
    if tuple(map(int, re.findall(r"\d+", found)[:2])) >= (0, 50):
        return None
    return (
        f"--trainer.quantize-base: found nf4, which bitsandbytes makes (here is {found or 'none'}); "
        "pip install 'bitsandbytes>=0.50'."
    )


class FsdpConfig(TrainerConfig):
    """Settings of the trainer `fsdp`."""

    needs_bridge: ClassVar[bool] = False
    libraries: ClassVar[tuple[str, ...]] = ("transformers", "peft")
    preload: ClassVar[tuple[str, ...]] = ("rlcore_fsdp.rank",)
    planner: ClassVar[str] = "rlcore_fsdp.plan.planner:FsdpPlanner"
    abilities: ClassVar[frozenset[Ability]] = frozenset(
        {
            *(Ability.RANKS, Ability.VALUES, Ability.SCORERS, Ability.OWN_RANKS),
            *(Ability.SWAPPED, Ability.REFRESH, Ability.SLEEP),
            *(Ability.TOP_TOKENS, Ability.MODEL_HOOKS, Ability.ADAPTERS, Ability.POLICIES),
        }
    )

    recompute: bool = Field(
        False, description="compute the activations of each block again in the backward pass: less memory"
    )
    optimizer_on_host: bool = Field(
        False, description="keep the optimizer's state in host memory and step there; for GPUs"
    )

    quantize_base: Literal["none", "nf4", "fp8"] = Field(
        "none",
        description="hold the frozen matrices beside an adapter in four bits (QLoRA) or in FP8",
    )

    def complaints(self, run: RunConfig, fields: Mapping[str, Any], roles: Collection[str]) -> Iterable[str]:
        """A refresh takes a whole policy; a quantized base is frozen, and not what the directory holds."""
        if run.has_overlay and run.reference.refresh_every and run.reference.ranks:
            yield "--reference.refresh-every: --reference.ranks gets no weights of an adapter; leave one out."
        if self.quantize_base == "none":
            return
        if self.quantize_base == "nf4" and (complaint := nf4_complaint()):
            yield complaint
        if not run.has_overlay:
            yield (
                f"--trainer.quantize-base: found {self.quantize_base}, but without an adapter the whole "
                "model trains; add --lora.rank."
            )
        if run.lora.publish == "adapter":
            yield (
                "--lora.publish: found adapter, but engines load the base as it is in the directory, and the "
                f"adapter trains beside its numbers in {self.quantize_base}; leave it out."
            )
        if run.reference.ranks and run.reference.model in (START, BASE):
            yield (
                f"--reference.ranks: found {run.reference.ranks}, but with --trainer.quantize-base the "
                "reference is the policy without its adapter; leave it out."
            )

    def left_out(self, fields: Mapping[str, Any], hf_config: Mapping[str, Any]) -> str | None:
        """A vision tower; layers for multi-token prediction, which transformers does not build."""
        layers = next((hf_config[name] for name in DRAFT_LAYERS if hf_config.get(name)), None)
        notes = ["Published and saved as it came: a vision tower."] if hf_config.get("vision_config") else []
        if layers:
            notes.append(
                f"Left out: layers for multi-token prediction ({layers}), neither trained, published "
                "nor saved."
            )
        return " ".join(notes) or None

    def model_complaints(
        self, run: RunConfig, fields: Mapping[str, Any], hf_config: Mapping[str, Any]
    ) -> Iterable[str]:
        """transformers must know the architecture, as a causal language model, and its weights be plain."""
        found, is_fp8 = hf_config.get("quantization_config"), self.quantize_base == "fp8"
        if found is not None and not (is_fp8 and fp8_block(found) == FP8_BLOCK):
            yield (
                "--model: found quantized weights (quantization_config), which the trainer 'fsdp' does not "
                "train; expected a directory in bf16 or fp32, or in FP8 with a weight_block_size of "
                f"{list(FP8_BLOCK)} under an adapter and --trainer.quantize-base fp8."
            )
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        kind = (hf_config.get("text_config") or hf_config).get("model_type")
        if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            yield (
                f"--model: found model_type {kind!r}, which is no causal language model that transformers "
                "knows."
            )
