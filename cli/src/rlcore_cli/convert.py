"""`rlcore convert`."""

from pathlib import Path

import click

from rlcore_cli.program import Program
from rlcore_cli.train import of_run


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.pass_obj
def convert(program: Program, checkpoint: Path, out: Path) -> None:
    """Write the model of CHECKPOINT (RUN/checkpoints/N) to the folder OUT, as transformers loads it."""
    resolved = of_run(program, checkpoint.resolve().parent.parent, f"{checkpoint}")
    from rlcore.runtime import convert as runtime

    runtime.convert(checkpoint, out, resolved)
    click.echo(f"{out}: the model of {checkpoint}, as transformers and SGLang load it.")
