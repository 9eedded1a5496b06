"""What this package offers."""

from collections.abc import Iterable

from rlcore.machine import has_gpu
from rlcore.plugins.hookspecs import hookimpl
from rlcore.plugins.records import Component
from rlcore_sglang.config import SglangConfig


@hookimpl
def rlcore_engines() -> Iterable[Component]:
    """The engine, the default where there is a GPU."""
    yield Component(
        name="sglang",
        factory="rlcore_sglang.engine:SglangEngine",
        summary="the SGLang server",
        config=SglangConfig,
        default=has_gpu(),
    )
