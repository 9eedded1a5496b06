"""What this package offers to rlcore."""

from collections.abc import Iterable
from functools import partial

from rlcore import ModelFamily, hookimpl
from rlcore_toolkit import TINY_SUGGESTS

ROUTER_BIAS = ("e_score_correction_bias",)
"""Rounded to bf16, it would choose other experts in an engine than in the trainer."""


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """GLM-4 dense, GLM-4.5 to 4.7, GLM-4.7-Flash, and GLM-5 to 5.2."""
    family = partial(ModelFamily, trainer="megatron", sizes="rlcore_glm:sizes")
    yield family(
        name="glm4",
        factory="rlcore_glm.dense:GlmBridge",
        summary="GLM-4 dense, with norms around each block",
        architectures=("Glm4ForCausalLM",),
        facts="rlcore_glm.facts:glm4",
    )
    yield family(
        name="glm",
        factory="rlcore_glm.dense:GlmBridge",
        summary="a tiny random GLM-4",
        architectures=(),
        sizes=None,
        preset="rlcore_glm.tiny:tiny",
        preset_config="rlcore_glm.tiny:CONFIG",
        lazy_bridge=True,
        suggests=TINY_SUGGESTS,
    )
    yield family(
        name="glm4_moe",
        factory="rlcore_glm.moe:GlmMoeBridge",
        summary="GLM-4.5, 4.6 and 4.7: experts",
        fp32_weights=ROUTER_BIAS,
        architectures=("Glm4MoeForCausalLM",),
        facts="rlcore_glm.facts:glm4_moe",
    )
    yield family(
        name="glm4_moe_lite",
        factory="rlcore_glm.lite:GlmMoeLiteBridge",
        summary="GLM-4.7-Flash: latent attention and experts",
        fp32_weights=ROUTER_BIAS,
        architectures=("Glm4MoeLiteForCausalLM",),
        facts="rlcore_glm.facts:glm4_moe_lite",
    )
    yield family(
        name="glm5",
        factory="rlcore_glm.sparse:GlmSparseBridge",
        summary="GLM-5, 5.1 and 5.2: sparse latent attention and experts; the preset is a tiny random one",
        fp32_weights=ROUTER_BIAS,
        architectures=("GlmMoeDsaForCausalLM",),
        facts="rlcore_glm.facts:glm5",
        preset="rlcore_glm.tiny:tiny_glm5",
        preset_config="rlcore_glm.tiny:GLM5",
        lazy_bridge=True,
        suggests=TINY_SUGGESTS,
    )
