"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import ModelFamily, hookimpl
from rlcore_toolkit import TINY_SUGGESTS


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """DeepSeek-V3, V3.1 and R1."""
    yield ModelFamily(
        name="deepseek_v3",
        factory="rlcore_deepseek.bridge:DeepseekBridge",
        summary="DeepSeek-V3, V3.1 and R1: latent attention and experts",
        trainer="megatron",
        architectures=("DeepseekV3ForCausalLM",),
        facts="rlcore_deepseek.facts:deepseek_v3",
        sizes="rlcore_deepseek:sizes",
    )
    yield ModelFamily(
        name="deepseek",
        factory="rlcore_deepseek.bridge:DeepseekBridge",
        summary="a tiny random DeepSeek-V3",
        trainer="megatron",
        architectures=(),
        preset="rlcore_deepseek.tiny:tiny",
        preset_config="rlcore_deepseek.tiny:CONFIG",
        lazy_bridge=True,
        suggests=TINY_SUGGESTS,
    )
