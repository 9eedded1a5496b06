"""Qwen3-Next on megatron-core: gated delta nets, every few layers a gated attention, and experts."""

from typing import ClassVar

from rlcore_megatron.mcore.bridges.names import LAYER
from rlcore_qwen.delta import DeltaExpertNames, DeltaMoeBridge


class NextNames(DeltaExpertNames):
    """The files have the rows of a delta net in megatron's order."""

    _ATTENTION_MAPPING: ClassVar = {
        **DeltaExpertNames._ATTENTION_MAPPING,
        "self_attention.in_proj_qkvz.weight": [f"{LAYER}.linear_attn.in_proj_qkvz.weight"],
        "self_attention.in_proj_ba.weight": [f"{LAYER}.linear_attn.in_proj_ba.weight"],
    }


class NextBridge(DeltaMoeBridge):
    """`Qwen3NextForCausalLM`."""

    names = NextNames
