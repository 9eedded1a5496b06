"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import ModelFamily, hookimpl


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """MiniMax-M2 and M2.5."""
    yield ModelFamily(
        name="minimax_m2",
        factory="rlcore_minimax.bridge:MiniMaxBridge",
        summary="MiniMax-M2 and M2.5: experts",
        trainer="megatron",
        architectures=("MiniMaxM2ForCausalLM",),
        facts="rlcore_minimax.facts:minimax_m2",
        sizes="rlcore_minimax:sizes",
    )
