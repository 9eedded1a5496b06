"""What this package offers to rlcore."""

from collections.abc import Iterable
from types import MappingProxyType

from rlcore.plugins.hookspecs import hookimpl
from rlcore.plugins.records import ModelFamily
from rlcore_qwen.config import QwenConfig

# What lets a two-layer model learn a task of a few characters from random weights in a hundred steps.
TINY = MappingProxyType(
    {
        "steps": 100,
        "prompts_per_step": 32,
        "group_size": 16,
        "max_prompt_tokens": 32,
        "max_response_tokens": 8,
        "lr": 2e-3,
        "critic_lr": 2e-3,
        "entropy_coef": 0.2,
        "eval_every": 20,
    }
)


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """Qwen2, Qwen2.5 and Qwen3, dense, and Qwen3-MoE."""
    yield ModelFamily(
        name="qwen3",
        factory="rlcore_qwen.bridge:QwenBridge",
        summary="Qwen3 dense; the preset is a tiny random one",
        config=QwenConfig,
        architectures=("Qwen3ForCausalLM",),
        preset="rlcore_qwen.tiny:tiny",
        suggests=TINY,
    )
    yield ModelFamily(
        name="qwen2",
        factory="rlcore_qwen.bridge:QwenBridge",
        summary="Qwen2 and Qwen2.5 dense",
        config=QwenConfig,
        architectures=("Qwen2ForCausalLM",),
    )
    yield ModelFamily(
        name="qwen3_moe",
        factory="rlcore_qwen.moe:QwenMoeBridge",
        summary="Qwen3 with experts",
        config=QwenConfig,
        architectures=("Qwen3MoeForCausalLM",),
    )
