"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_model_hooks() -> Iterable[Component]:
    """Freezing."""
    yield Component(
        name="freeze",
        factory="rlcore_freeze.hook:Freeze",
        summary="leave parameters as they are, by patterns of their names",
        config="rlcore_freeze.config:FreezeConfig",
    )
