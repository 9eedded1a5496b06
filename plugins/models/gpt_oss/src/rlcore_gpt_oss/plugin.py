"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import ModelFamily, hookimpl
from rlcore_toolkit import TINY_SUGGESTS


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """gpt-oss-20b and 120b."""
    yield ModelFamily(
        name="gpt_oss",
        factory="rlcore_gpt_oss.bridge:GptOssBridge",
        summary="gpt-oss: windows, sinks, experts; the preset is a tiny random one",
        trainer="megatron",
        architectures=("GptOssForCausalLM",),
        facts="rlcore_gpt_oss.facts:gpt_oss",
        sizes="rlcore_gpt_oss:sizes",
        preset="rlcore_gpt_oss.tiny:tiny",
        preset_config="rlcore_gpt_oss.tiny:CONFIG",
        lazy_bridge=True,
        suggests=TINY_SUGGESTS,
    )
