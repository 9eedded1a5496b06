"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl
from rlcore_toolkit import has_gpu_for


@hookimpl
def rlcore_engines() -> Iterable[Component]:
    """The engine, the default without a GPU, or without SGLang."""
    yield Component(
        name="local",
        factory="rlcore_local.engine:LocalEngine",
        summary="a small server over transformers; on the CPU or a GPU",
        config="rlcore_local.config:LocalConfig",
        default=not has_gpu_for("sglang"),
    )
