"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_trackers() -> Iterable[Component]:
    """The tracker that writes every run's folder."""
    yield Component(
        name="jsonl",
        factory="rlcore_jsonl.tracker:Jsonl",
        summary="metrics.jsonl and samples/ in the run's folder; always on",
        default=True,
    )
