"""Core's own parts, registered through the same hooks as everyone else's."""

from collections.abc import Iterable

from rlcore.api.hookspecs import hookimpl
from rlcore.api.records import Component
from rlcore.config.producers import AsynchronousConfig, SynchronousConfig


@hookimpl
def rlcore_producers() -> Iterable[Component]:
    """The producers that ask engines. The default one is whichever suits the run."""
    yield Component(
        name="synchronous",
        factory="rlcore.rollout.producers:synchronous_producer",
        summary="generation and training take turns",
        config=SynchronousConfig,
        default=True,
    )
    yield Component(
        name="asynchronous",
        factory="rlcore.rollout.producers:asynchronous_producer",
        summary="generation and training at the same time",
        config=AsynchronousConfig,
        default=True,
    )


@hookimpl
def rlcore_trackers() -> Iterable[Component]:
    """The tracker that writes every run's folder."""
    yield Component(
        name="jsonl",
        factory="rlcore.tracking.jsonl:Jsonl",
        summary="metrics.jsonl and samples/ in the run's folder; always on",
        default=True,
    )
