"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl
from rlcore_local.config import LocalConfig
from rlcore_toolkit import has_gpu


@hookimpl
def rlcore_engines() -> Iterable[Component]:
    """The engine, the default without a GPU."""
    yield Component(
        name="local",
        factory="rlcore_local.engine:LocalEngine",
        summary="a small server over transformers; needs no GPU",
        config=LocalConfig,
        default=not has_gpu(),
    )
