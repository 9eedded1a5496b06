"""What this package offers to rlcore."""

from collections.abc import Iterable
from functools import partial

from rlcore import ModelFamily, hookimpl
from rlcore_toolkit import TINY_SUGGESTS

ROUTER_BIAS = ("e_score_correction_bias",)
"""Rounded to bf16, it would choose other experts in an engine than in the trainer."""


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """DeepSeek-V3, V3.1, R1 and V3.2, and Kimi-Linear."""
    family = partial(ModelFamily, trainer="megatron", fp32_weights=ROUTER_BIAS, sizes="rlcore_deepseek:sizes")
    yield family(
        name="deepseek_v3",
        factory="rlcore_deepseek.bridge:DeepseekBridge",
        summary="DeepSeek-V3, V3.1 and R1, Kimi-K2 and Moonlight: latent attention and experts",
        architectures=("DeepseekV3ForCausalLM",),
        facts="rlcore_deepseek.facts:deepseek_v3",
        adopt="rlcore_deepseek.adopt:kimi",
    )
    yield family(
        name="deepseek_v32",
        factory="rlcore_deepseek.bridge:SparseDeepseekBridge",
        summary="DeepSeek-V3.2: sparse latent attention and experts; the preset is a tiny random one",
        architectures=("DeepseekV32ForCausalLM",),
        facts="rlcore_deepseek.facts:deepseek_v3",
        preset="rlcore_deepseek.tiny:tiny_v32",
        preset_config="rlcore_deepseek.tiny:V32",
        lazy_bridge=True,
        suggests=TINY_SUGGESTS,
    )
    yield family(
        name="kimi_linear",
        factory="rlcore_deepseek.kimi_linear:KimiLinearBridge",
        summary="Kimi-Linear: delta nets, latent attention, experts; the preset is a tiny random one",
        architectures=("KimiLinearForCausalLM",),
        facts="rlcore_deepseek.facts:kimi_linear",
        preset="rlcore_deepseek.tiny:tiny_kimi_linear",
        preset_config="rlcore_deepseek.tiny:KIMI_LINEAR",
        adopt="rlcore_deepseek.adopt:kimi",
        lazy_bridge=True,
        suggests={**TINY_SUGGESTS, "lr": 6e-3},
    )
    yield family(
        name="deepseek",
        factory="rlcore_deepseek.bridge:DeepseekBridge",
        summary="a tiny random DeepSeek-V3",
        architectures=(),
        sizes=None,
        preset="rlcore_deepseek.tiny:tiny",
        preset_config="rlcore_deepseek.tiny:CONFIG",
        lazy_bridge=True,
        suggests=TINY_SUGGESTS,
    )
