"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Source, hookimpl


@hookimpl
def rlcore_sources() -> Iterable[Source]:
    """The source behind `--data`."""
    yield Source(
        name="file",
        factory="rlcore_files.source:FileSource",
        summary="prompts from a .jsonl or .parquet file",
        config="rlcore_files.config:FileConfig",
        task=False,
    )
