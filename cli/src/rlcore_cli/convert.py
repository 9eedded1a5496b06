"""`rlcore convert`."""

from pathlib import Path

import click


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
def convert(checkpoint: Path, out: Path) -> None:
    """Write the model of CHECKPOINT (RUN/checkpoints/N) to the folder OUT, as transformers loads it."""
    from rlcore.runtime import convert as runtime

    runtime.convert(checkpoint, out)
