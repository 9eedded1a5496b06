"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Source, hookimpl
from rlcore_files.config import FileConfig


@hookimpl
def rlcore_sources() -> Iterable[Source]:
    """The source behind `--data`."""
    yield Source(
        name="file",
        factory="rlcore_files.source:FileSource",
        summary="prompts from a .jsonl or .parquet file",
        config=FileConfig,
        task=False,
    )
