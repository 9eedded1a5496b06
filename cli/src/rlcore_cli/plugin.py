"""The commands of this package; other plugins add theirs through the same hook."""

from collections.abc import Iterable

import click

from rlcore.api.hookspecs import hookimpl
from rlcore.api.records import ForeignSetting
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


@hookimpl
def rlcore_foreign_settings() -> Iterable[ForeignSetting]:
    """What a file of settings may not say, since it serves several runs."""
    for name, flag in (("run_dir", "--run-dir"), ("resume", "--resume"), ("export", "--export")):
        yield ForeignSetting(framework="The command line", name=name, hint=f"use {flag}")
