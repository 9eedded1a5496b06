"""What this package offers to rlcore."""

from collections.abc import Iterable
from functools import partial

from rlcore import ModelFamily, hookimpl
from rlcore_toolkit import TINY_SUGGESTS


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """Llama 2 and 3, Mistral and Ministral 3, dense."""
    family = partial(
        ModelFamily, trainer="megatron", facts="rlcore_toolkit:decoder_facts", sizes="rlcore_llama:sizes"
    )
    yield family(
        name="llama",
        factory="rlcore_llama.bridge:LlamaBridge",
        summary="Llama 2 and Llama 3 dense; the preset is a tiny random one",
        architectures=("LlamaForCausalLM",),
        preset="rlcore_llama.tiny:tiny",
        preset_config="rlcore_llama.tiny:CONFIG",
        lazy_bridge=True,
        suggests=TINY_SUGGESTS,
    )
    yield family(
        name="mistral",
        factory="rlcore_llama.bridge:MistralBridge",
        summary="Mistral dense, with or without a window",
        architectures=("MistralForCausalLM",),
    )
    yield family(
        name="ministral3",
        factory="rlcore_llama.bridge:Ministral3Bridge",
        summary="Ministral 3, and the decoder of Mistral Small 3 with a vision tower",
        architectures=("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
    )
