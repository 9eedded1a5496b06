"""The commands of this package; other plugins add theirs through the same hook."""

from collections.abc import Iterable

import click

from rlcore.api.hookspecs import hookimpl
from rlcore_cli.convert import convert, export
from rlcore_cli.evaluate import EvalCommand
from rlcore_cli.listing import plugins
from rlcore_cli.train import TrainCommand


@hookimpl
def rlcore_commands() -> Iterable[click.Command]:
    """`train`, `eval`, `plugins`, `convert` and `export`."""
    yield TrainCommand("train", help="Train a model with reinforcement learning.")
    yield EvalCommand("eval", help="Evaluate a model on named sets. Nothing is trained.")
    yield plugins
    yield convert
    yield export
