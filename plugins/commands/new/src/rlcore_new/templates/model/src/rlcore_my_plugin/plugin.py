"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import ModelFamily, hookimpl
from rlcore_toolkit import TINY_SUGGESTS


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """The family. `architectures` are those of the config.json files that it claims."""
    yield ModelFamily(
        name="my_plugin",
        factory="rlcore_my_plugin.bridge:MyPlugin",
        summary="Mistral without sliding windows; the preset is a tiny random one",
        trainer="megatron",
        architectures=("MistralForCausalLM",),
        preset="rlcore_my_plugin.tiny:tiny",
        preset_config="rlcore_my_plugin.tiny:CONFIG",
        suggests=TINY_SUGGESTS,
    )
