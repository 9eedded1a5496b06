"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore.plugins.hookspecs import hookimpl
from rlcore.plugins.records import ModelFamily


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """Llama 2 and 3, dense."""
    yield ModelFamily(
        name="llama",
        factory="rlcore_llama.bridge:LlamaBridge",
        summary="Llama 2 and Llama 3 dense",
        architectures=("LlamaForCausalLM",),
    )
