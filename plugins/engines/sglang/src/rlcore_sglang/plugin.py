"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl
from rlcore_toolkit import has_gpu_for


@hookimpl
def rlcore_engines() -> Iterable[Component]:
    """The engine, the default where there is a GPU and SGLang is installed."""
    yield Component(
        name="sglang",
        factory="rlcore_sglang.engine:SglangEngine",
        summary="the SGLang server",
        config="rlcore_sglang.config:SglangConfig",
        default=has_gpu_for("sglang"),
    )
