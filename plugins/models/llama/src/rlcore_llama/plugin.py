"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import ModelFamily, hookimpl
from rlcore_toolkit import TINY_SUGGESTS


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """Llama 2 and 3, Mistral and Ministral 3, dense."""
    yield ModelFamily(
        name="llama",
        factory="rlcore_llama.bridge:LlamaBridge",
        summary="Llama 2 and Llama 3 dense; the preset is a tiny random one",
        trainer="megatron",
        architectures=("LlamaForCausalLM",),
        facts="rlcore_llama.facts:llama",
        sizes="rlcore_llama:sizes",
        preset="rlcore_llama.tiny:tiny",
        preset_config="rlcore_llama.tiny:CONFIG",
        lazy_bridge=True,
        suggests=TINY_SUGGESTS,
    )
    yield ModelFamily(
        name="mistral",
        factory="rlcore_llama.bridge:MistralBridge",
        summary="Mistral dense, with or without a window",
        trainer="megatron",
        architectures=("MistralForCausalLM",),
        facts="rlcore_llama.facts:llama",
        sizes="rlcore_llama:sizes",
    )
    yield ModelFamily(
        name="ministral3",
        factory="rlcore_llama.bridge:Ministral3Bridge",
        summary="Ministral 3, and the decoder of Mistral Small 3 with a vision tower",
        trainer="megatron",
        architectures=("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
        facts="rlcore_llama.facts:llama",
        sizes="rlcore_llama:sizes",
    )
