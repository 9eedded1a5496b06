"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import ModelFamily, hookimpl
from rlcore_qwen.config import QwenConfig
from rlcore_toolkit import TINY_SUGGESTS


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """Qwen2, Qwen2.5 and Qwen3, dense, and Qwen3-MoE."""
    yield ModelFamily(
        name="qwen3",
        factory="rlcore_qwen.bridge:QwenBridge",
        summary="Qwen3 dense; the preset is a tiny random one",
        config=QwenConfig,
        trainer="megatron",
        architectures=("Qwen3ForCausalLM",),
        facts="rlcore_qwen.facts:qwen3",
        sizes="rlcore_qwen:sizes",
        preset="rlcore_qwen.tiny:tiny",
        preset_config="rlcore_qwen.tiny:CONFIG",
        lazy_bridge=True,
        suggests=TINY_SUGGESTS,
    )
    yield ModelFamily(
        name="qwen2",
        factory="rlcore_qwen.bridge:QwenBridge",
        summary="Qwen2 and Qwen2.5 dense",
        config=QwenConfig,
        trainer="megatron",
        architectures=("Qwen2ForCausalLM",),
        facts="rlcore_qwen.facts:qwen2",
        sizes="rlcore_qwen:sizes",
    )
    yield ModelFamily(
        name="qwen3_moe",
        factory="rlcore_qwen.moe:QwenMoeBridge",
        summary="Qwen3 with experts",
        config=QwenConfig,
        trainer="megatron",
        architectures=("Qwen3MoeForCausalLM",),
        facts="rlcore_qwen.facts:qwen3_moe",
        sizes="rlcore_qwen:sizes",
    )
