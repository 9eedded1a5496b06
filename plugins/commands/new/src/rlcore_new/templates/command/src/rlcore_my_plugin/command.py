"""`rlcore my-plugin`: the best step of a run.

It imports little: the program loads it at every start.
"""

import json
from pathlib import Path

import click
from rlcore import CheckpointError, ConfigError, did_you_mean


@click.command("my-plugin")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--metric", default="rollout/reward_mean", show_default=True, help="Key of metrics.jsonl.")
@click.option("--lowest", is_flag=True, help="The lowest value is the best.")
def my_plugin(run: Path, metric: str, lowest: bool) -> None:
    """Show in which step of the folder RUN a metric was best."""
    values = read(run, metric)
    step = min(values, key=lambda step: values[step] if lowest else -values[step])
    click.echo(f"{metric}: {values[step]:g} at step {step} of {max(values)}")


def read(run: Path, metric: str) -> dict[int, float]:
    """Step → value. The last line of a run that goes on may be torn: only whole lines count."""
    file = run / "metrics.jsonl"
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file, so {run} is no folder of a run.")
    whole, _, _ = file.read_text().rpartition("\n")
    rows = [json.loads(line) for line in whole.splitlines()]
    values = {row["step"]: float(row[metric]) for row in rows if metric in row}
    if not values:
        known = sorted({key for row in rows for key in row})
        raise ConfigError(f"--metric: {metric!r} is in no line of {file}.{did_you_mean(metric, known)}")
    return values
