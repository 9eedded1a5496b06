"""What this package offers to rlcore."""

from collections.abc import Iterable
from functools import partial

from rlcore import ModelFamily, hookimpl
from rlcore_toolkit import TINY_SUGGESTS

DELTA_SUGGESTS = {**TINY_SUGGESTS, "lr": 4e-3}
"""A tiny model with delta nets learns as fast as others at a higher rate."""


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """Qwen2, Qwen2.5, Qwen3 and MiMo, dense, Qwen3-MoE, Qwen3-Next, and Qwen3.5, dense and with experts."""
    family = partial(ModelFamily, trainer="megatron", sizes="rlcore_qwen:sizes")
    yield family(
        name="qwen3",
        factory="rlcore_qwen.bridge:QwenBridge",
        summary="Qwen3 dense; the preset is a tiny random one",
        architectures=("Qwen3ForCausalLM",),
        facts="rlcore_qwen.facts:qwen3",
        preset="rlcore_qwen.tiny:tiny",
        preset_config="rlcore_qwen.tiny:CONFIG",
        lazy_bridge=True,
        suggests=TINY_SUGGESTS,
    )
    yield family(
        name="qwen2",
        factory="rlcore_qwen.bridge:QwenBridge",
        summary="Qwen2 and Qwen2.5 dense",
        architectures=("Qwen2ForCausalLM",),
        facts="rlcore_qwen.facts:qwen2",
    )
    yield family(
        name="mimo",
        factory="rlcore_qwen.mimo:MimoBridge",
        summary="MiMo 7B: Qwen2 with a layer for multi-token prediction",
        architectures=("MiMoForCausalLM",),
        facts="rlcore_qwen.facts:qwen2",
        adopt="rlcore_qwen.adopt:mimo",
    )
    yield family(
        name="qwen3_moe",
        factory="rlcore_qwen.moe:QwenMoeBridge",
        summary="Qwen3 with experts",
        architectures=("Qwen3MoeForCausalLM",),
        facts="rlcore_qwen.facts:qwen3_moe",
    )
    yield family(
        name="qwen3_next",
        factory="rlcore_qwen.next:NextBridge",
        summary="Qwen3-Next: gated delta nets, gated attention, experts; the preset is a tiny random one",
        architectures=("Qwen3NextForCausalLM",),
        facts="rlcore_qwen.facts:qwen3_next",
        preset="rlcore_qwen.delta_tiny:tiny_next",
        preset_config="rlcore_qwen.delta_tiny:NEXT",
        lazy_bridge=True,
        suggests=DELTA_SUGGESTS,
    )
    yield family(
        name="qwen3_5",
        factory="rlcore_qwen.qwen3_5:DenseBridge",
        summary="Qwen3.5 dense: gated delta nets, gated attention; the preset is a tiny random one",
        architectures=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        facts="rlcore_qwen.facts:qwen3_5",
        preset="rlcore_qwen.delta_tiny:tiny_qwen3_5",
        preset_config="rlcore_qwen.delta_tiny:QWEN3_5",
        lazy_bridge=True,
        suggests=DELTA_SUGGESTS,
    )
    yield family(
        name="qwen3_5_moe",
        factory="rlcore_qwen.qwen3_5:SparseBridge",
        summary="Qwen3.5 with experts; the preset is a tiny random one",
        architectures=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
        facts="rlcore_qwen.facts:qwen3_next",
        preset="rlcore_qwen.delta_tiny:tiny_qwen3_5_moe",
        preset_config="rlcore_qwen.delta_tiny:QWEN3_5_MOE",
        lazy_bridge=True,
        suggests=DELTA_SUGGESTS,
    )
