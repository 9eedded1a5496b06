"""What core itself offers: it registers through the same hooks as everyone else."""

from collections.abc import Iterable

from rlcore.data.config import AddConfig, DigitsConfig, FileConfig
from rlcore.plugins.hookspecs import hookimpl
from rlcore.plugins.records import Component, Source


@hookimpl
def rlcore_trackers() -> Iterable[Component]:
    """What every run writes into its folder."""
    yield Component(
        name="jsonl",
        factory="rlcore.tracking.jsonl:Jsonl",
        summary="metrics.jsonl and samples/ in the run's folder; always on",
        default=True,
    )


@hookimpl
def rlcore_sources() -> Iterable[Source]:
    """The prompt file and the procedural tasks."""
    yield Source(
        name="file",
        factory="rlcore.data.files:FileSource",
        summary="prompts from a .jsonl or .parquet file",
        config=FileConfig,
        task=False,
    )
    yield Source(
        name="copy",
        factory="rlcore.data.tasks:Copy",
        summary="digits in, the same digits out",
        config=DigitsConfig,
        default=True,
    )
    yield Source(
        name="reverse",
        factory="rlcore.data.tasks:Reverse",
        summary="digits in, reversed digits out",
        config=DigitsConfig,
    )
    yield Source(
        name="sort",
        factory="rlcore.data.tasks:Sort",
        summary="digits in, sorted digits out",
        config=DigitsConfig,
    )
    yield Source(
        name="add",
        factory="rlcore.data.tasks:Add",
        summary="two numbers in, their sum out",
        config=AddConfig,
    )
