"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import ModelFamily, hookimpl

ROUTER_BIAS = ("e_score_correction_bias",)
"""Rounded to bf16, it would choose other experts in an engine than in the trainer."""


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """MiniMax-M2 and M2.5."""
    yield ModelFamily(
        name="minimax_m2",
        factory="rlcore_minimax.bridge:MiniMaxBridge",
        summary="MiniMax-M2 and M2.5: experts",
        trainer="megatron",
        fp32_weights=ROUTER_BIAS,
        architectures=("MiniMaxM2ForCausalLM",),
        facts="rlcore_minimax.facts:minimax_m2",
        sizes="rlcore_minimax:sizes",
    )
