"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import ModelFamily, hookimpl
from rlcore_toolkit import TINY_SUGGESTS


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """GLM-4 dense, GLM-4.5 to 4.7, and GLM-4.7-Flash."""
    yield ModelFamily(
        name="glm4",
        factory="rlcore_glm.dense:GlmBridge",
        summary="GLM-4 dense, with norms around each block",
        trainer="megatron",
        architectures=("Glm4ForCausalLM",),
        facts="rlcore_glm.facts:glm4",
        sizes="rlcore_glm:sizes",
    )
    yield ModelFamily(
        name="glm",
        factory="rlcore_glm.dense:GlmBridge",
        summary="a tiny random GLM-4",
        trainer="megatron",
        architectures=(),
        preset="rlcore_glm.tiny:tiny",
        preset_config="rlcore_glm.tiny:CONFIG",
        lazy_bridge=True,
        suggests=TINY_SUGGESTS,
    )
    yield ModelFamily(
        name="glm4_moe",
        factory="rlcore_glm.moe:GlmMoeBridge",
        summary="GLM-4.5, 4.6 and 4.7: experts",
        trainer="megatron",
        architectures=("Glm4MoeForCausalLM",),
        facts="rlcore_glm.facts:glm4_moe",
        sizes="rlcore_glm:sizes",
    )
    yield ModelFamily(
        name="glm4_moe_lite",
        factory="rlcore_glm.lite:GlmMoeLiteBridge",
        summary="GLM-4.7-Flash: latent attention and experts",
        trainer="megatron",
        architectures=("Glm4MoeLiteForCausalLM",),
        facts="rlcore_glm.facts:glm4_moe_lite",
        sizes="rlcore_glm:sizes",
    )
