"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_producers() -> Iterable[Component]:
    """The producers that ask engines. The run's settings choose between them."""
    yield Component(
        name="synchronous",
        factory="rlcore_sampling.producers:synchronous_producer",
        summary="generation and training take turns",
        config="rlcore_sampling.config:SynchronousConfig",
        default=True,
    )
    yield Component(
        name="asynchronous",
        factory="rlcore_sampling.producers:asynchronous_producer",
        summary="generation and training at the same time",
        config="rlcore_sampling.config:AsynchronousConfig",
        default=True,
    )
