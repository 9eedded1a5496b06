"""`rlcore my-plugin`: the best step of a run."""

from pathlib import Path

import click
from rlcore import METRICS_FILE, CheckpointError, ConfigError, did_you_mean, read_metrics


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
    """Step → value. A last line that is still being written does not count."""
    file = run / METRICS_FILE
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file, so {run} is no folder of a run.")
    rows = read_metrics(file)
    values = {row["step"]: float(row[metric]) for row in rows if metric in row}
    if not values:
        names = sorted({key for row in rows for key in row})
        raise ConfigError(f"--metric: {metric!r} is in no line of {file}.{did_you_mean(metric, names)}")
    return values
