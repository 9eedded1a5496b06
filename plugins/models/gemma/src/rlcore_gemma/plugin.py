"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import ModelFamily, hookimpl
from rlcore_toolkit import TINY_SUGGESTS


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """Gemma 3, the text model."""
    yield ModelFamily(
        name="gemma3",
        factory="rlcore_gemma.bridge:GemmaBridge",
        summary="Gemma 3 text: windows, two kinds of positions; the preset is a tiny random one",
        trainer="megatron",
        architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        facts="rlcore_gemma.facts:gemma3",
        preset="rlcore_gemma.tiny:tiny",
        preset_config="rlcore_gemma.tiny:CONFIG",
        lazy_bridge=True,
        suggests=TINY_SUGGESTS,
    )
