"""Core's own part, registered through the same hook as everyone else's."""

from collections.abc import Iterable

from rlcore.api.hookspecs import hookimpl
from rlcore.api.records import Component


@hookimpl
def rlcore_trackers() -> Iterable[Component]:
    """The tracker that writes every run's folder."""
    yield Component(
        name="jsonl",
        factory="rlcore.tracking.jsonl:Jsonl",
        summary="metrics.jsonl and samples/ in the run's folder; always on",
        default=True,
    )
