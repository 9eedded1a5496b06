"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Source, hookimpl


@hookimpl
def rlcore_sources() -> Iterable[Source]:
    """The procedural tasks."""
    yield Source(
        name="copy",
        factory="rlcore_tasks.tasks:Copy",
        summary="digits in, the same digits out",
        config="rlcore_tasks.config:DigitsConfig",
        default=True,
    )
    yield Source(
        name="reverse",
        factory="rlcore_tasks.tasks:Reverse",
        summary="digits in, reversed digits out",
        config="rlcore_tasks.config:DigitsConfig",
    )
    yield Source(
        name="sort",
        factory="rlcore_tasks.tasks:Sort",
        summary="digits in, sorted digits out",
        config="rlcore_tasks.config:DigitsConfig",
    )
    yield Source(
        name="add",
        factory="rlcore_tasks.tasks:Add",
        summary="two numbers in, their sum out",
        config="rlcore_tasks.config:AddConfig",
    )
