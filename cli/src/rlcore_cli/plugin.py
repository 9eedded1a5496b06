"""The commands of this package; other plugins add theirs through the same hook."""

from collections.abc import Iterable

from rlcore.api.hookspecs import hookimpl
from rlcore.api.records import Component, ForeignSetting


@hookimpl
def rlcore_commands() -> Iterable[Component]:
    """`train`, `eval`, `plugins`, `convert` and `export`."""
    yield Component(
        name="train",
        factory="rlcore_cli.train:train_command",
        summary="Train a model with reinforcement learning.",
    )
    yield Component(
        name="eval",
        factory="rlcore_cli.evaluate:eval_command",
        summary="Evaluate a model on named sets. Nothing is trained.",
    )
    yield Component(
        name="plugins",
        factory="rlcore_cli.listing:plugins",
        summary="List every part that a plugin offers, and the plugins that could not be loaded.",
    )
    yield Component(
        name="convert",
        factory="rlcore_cli.convert:convert",
        summary="Convert weights between checkpoints and Hugging Face directories, one tensor at a time.",
    )
    yield Component(
        name="export",
        factory="rlcore_cli.convert:export",
        summary="Write the model of RUN's newest checkpoint to the folder OUT, as transformers and engines "
        "load it.",
    )


@hookimpl
def rlcore_foreign_settings() -> Iterable[ForeignSetting]:
    """What a file of settings may not say, since it serves several runs."""
    for name, flag in (("run_dir", "--run-dir"), ("resume", "--resume"), ("export", "--export")):
        yield ForeignSetting(framework="The command line", name=name, hint=f"use {flag}")
