"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, has_gpu, hookimpl
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
