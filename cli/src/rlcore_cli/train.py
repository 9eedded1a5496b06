"""`rlcore train`: a command whose options depend on the parts that its own arguments choose."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tomllib
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlcore.api.errors import CheckpointError, ConfigError, PluginError, RlcoreError, UserError
from rlcore.api.plugin_file import PluginFile
from rlcore.api.records import Component, Kind
from rlcore.checkpoint.folder import newest_complete
from rlcore.compose.engine_groups import ENGINE_GROUP, engine_groups, group_fields
from rlcore.compose.frozen import FROZEN, check_frozen, fields_of, frozen_models
from rlcore.compose.models import directory_of
from rlcore.compose.resolved import Inference, ModelChoice, Resolved
from rlcore.compose.roles import of_role
from rlcore.compose.run_checks import check_engine_placement, config_of, engine_count
from rlcore.compose.selection import Selection
from rlcore.config.layers import Layer
from rlcore.plugins.factories import check_factory
from rlcore.plugins.registry import Registry, is_file
from rlcore.preparation.run_folder import CHECKPOINTS, RUN_TOML, check_new
from rlcore.preparation.run_state import check_format
from rlcore_cli import options
from rlcore_cli.program import Program
from rlcore_cli.resolve import resolve, resolve_model, resolve_part
from rlcore_cli.resume import check_same_past
from rlcore_cli.select import select, written_out
from rlcore_machine import Terminated
from rlcore_toolkit import has_gpu_here

if TYPE_CHECKING:
    from rlcore.api.part import Part
    from rlcore.api.part_config import TrainerConfig
    from rlcore.api.trainer import Trainer
    from rlcore.engines.engine import Engine

LOADING = "Loading torch and the rest"
"""The phase of a command that comes first: seconds on a busy machine."""

MODEL_TABLES = (Kind.MODEL, Kind.TRAINER)
"""The tables of a run's settings that say how its checkpoints are read."""


class TrainCommand(click.Command):
    """Reads the choices first, then makes a command with the flags of what is chosen."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of that command. Raises `UserError` for a choice that does not exist."""
        choices = options.scan(args)
        program, file = file_layer(program_of(parent), choices)
        flags = {name: value for name, value in choices.items() if name not in options.NO_CHOICES}
        selection = select(program.plugins.registry, file, Layer(label="", values=flags))
        command = options.SelectedCommand(
            options.all_options(selection, args),
            run=lambda flags, params: _run(program, file, flags, params),
            unknown=selection.unknown,
            passed=options.passed_help(selection),
            name=self.name,
            help=self.help,
        )
        return command.make_context(info_name, args, parent=parent, **extra)


train_command = TrainCommand("train", help="Train a model with reinforcement learning.")


def program_of(parent: click.Context | None) -> Program:
    """The program that a command runs in. Raises `PluginError` for a plugin file that is broken."""
    program = parent.find_object(Program) if parent is not None else None
    assert program is not None, "the command runs inside the rlcore program"
    program.require_files()
    return program


def file_layer(program: Program, choices: options.Params) -> tuple[Program, Layer | None]:
    """The layer of `--config` or of the resumed run, with the plugin files that it names loaded."""
    config, resume = choices.get("config"), choices.get("resume")
    if config is not None and resume is not None:
        raise ConfigError("--config and --resume exclude each other; a resumed run has its own run.toml.")
    if config is None and resume is None:
        return program, None
    path = Path(config) if config is not None else Path(str(resume)) / RUN_TOML
    if resume is not None and not path.is_file():
        raise CheckpointError(f"--resume {resume}: found no {RUN_TOML} there, expected the folder of a run.")
    if resume is not None and (newest := newest_complete(path.parent / CHECKPOINTS)) is not None:
        check_format(newest)
    if resume is not None:
        _check_plugins(program, path.parent)
    return program.read(path, "--resume" if config is None else "--config")


def _check_plugins(program: Program, run_dir: Path) -> None:
    """Raises `PluginError` where a plugin of the run is gone: its settings would look like slips."""
    from rlcore.preparation.provenance import Provenance

    try:
        started = Provenance.of_start(run_dir, sys.maxsize)
    except CheckpointError:  # it is told of later, where all else is well
        return
    there = {info.name for info in (*program.plugins.infos, *program.plugins.broken)}
    for name, info in started.plugins.items() if started is not None else ():
        if name not in there and not is_file(info["version"]):
            raise PluginError(
                f"--resume {run_dir}: the run uses the plugin {name!r} of {info['distribution']} "
                f"{info['version']}, which is not there; install it."
            )


def _run(program: Program, file: Layer | None, flags: Layer, params: options.Params) -> None:
    resolved = _resolve(program, file, flags)
    resume: Path | None = params["resume"]
    if resume is not None:
        check_same_past(_resolve(program, file, Layer(label="", values={})), resolved)
    check_before_start(resolved, program.plugins.registry)
    if file and (lost := _lost_settings(file, select(program.plugins.registry, file, flags))):
        where = f"of {file.label}: the flags choose other parts than these are for"
        click.echo(f"note: left out {', '.join(lost)} {where}.", err=True)
    if params["dry_run"]:
        _check_engines(resolved)
        print_settings(resolved.to_toml(), as_json=params["as_json"])
        return
    export: Path | None = params["export"]
    if export is not None:
        _check_target(export, resolved)
    run_dir = _run_dir(params["run_dir"], resume)
    resolved = replace(resolved, model=with_weights(resolved.model))
    from rlcore_cli.columns import columns_of
    from rlcore_cli.display import TerminalDisplay
    from rlcore_machine import deferred_collection

    columns = columns_of(resolved.trains_on, resolved.needs)
    screen = TerminalDisplay(json=params["as_json"], steps=resolved.run.steps, columns=columns)
    try:
        with deferred_collection(), screen as display:
            display.phase(LOADING)
            from rlcore.runtime.train import train

            with redirect_stdout(sys.stderr) if params["as_json"] else nullcontext():  # what plugins print
                summary = train(resolved, run_dir=run_dir, resume=resume, display=display)
            display.finish(summary)
    except RlcoreError as error:
        if "run" in error.summary:  # it had begun
            failed = Path(str(error.summary["run"]))
            click.echo(f"run folder: {failed}", err=True)
            if newest_complete(failed / CHECKPOINTS) is not None:
                click.echo(_resume_advice(failed), err=True)
        raise
    run_dir = Path(summary.run)
    if "view" in getattr(click.get_current_context().find_root().command, "commands", ()):
        click.echo(
            f"curves, samples and what each metric means: rlcore view {shlex.quote(str(run_dir))}",
            err=params["as_json"],
        )
    if summary.exit_reason in ("interrupted", "terminated", "sigterm"):
        click.echo(_resume_advice(run_dir), err=params["as_json"])
    if summary.exit_reason == "interrupted":
        raise KeyboardInterrupt
    if summary.exit_reason == "terminated":
        raise Terminated
    if export is not None:
        from rlcore_cli.weights_source import checkpoint_of, of_checkpoint

        source = of_checkpoint(checkpoint_of(run_dir), resolved.model)
        resolved.trainer.build().to_hf(source, export, _unseen)
        click.echo(f"{export}: the model, as transformers and engines load it.", err=params["as_json"])
        for name in resolved.run.policies:
            more = f"rlcore export {shlex.quote(str(run_dir))} OUT --policy {name}"
            click.echo(f"that is the run's own policy; for {name!r}: {more}", err=params["as_json"])


def _lost_settings(file: Layer, selection: Selection) -> list[str]:
    """The settings of `file` that a flag takes the place of, because they are for another part."""
    (plain,) = written_out(selection.registry, file)
    kept = {name for layer in selection.layers if layer.label == file.label for name in layer.values}
    return [name for name in plain.values if name not in kept]


def _check_engines(resolved: Resolved) -> None:
    """`ConfigError` for engines that no GPUs could hold as the run places them.

    A dry run may be of a run elsewhere. It is of one without GPUs where this machine has none and the engine
    could start on it: its CPUs hold any number of engines.
    """
    if not resolved.samples or resolved.run.serving.engine_url:
        return
    engine, run, fields = resolved.engine.build(), resolved.run, resolved.engine_fields
    try:
        count = engine_count(engine, run, fields)
        check_engine_placement(engine, run, count, fields, config_of(resolved.model))
    except UserError:
        if not _starts_on_cpu(engine, fields):
            raise


def _starts_on_cpu(engine: Engine, fields: Mapping[str, Any]) -> bool:
    with suppress(UserError):  # it is not installed here, or not for this machine
        engine.check(fields)
        return not has_gpu_here()
    return False


def print_settings(settings: str, *, as_json: bool) -> None:
    """The answer of a dry run: the TOML `settings`, or the same tables as a JSON object."""
    click.echo(json.dumps(tomllib.loads(settings), indent=2) if as_json else settings.removesuffix("\n"))


def _resume_advice(run_dir: Path) -> str:
    """How to go on with the run in `run_dir`, in words."""
    newest = newest_complete(run_dir / CHECKPOINTS)
    if newest is None:
        return (
            "no checkpoint: this run cannot be resumed. --save-every N saves every N steps; SIGTERM, unlike "
            "Ctrl-C, saves what was trained before it ends a run."
        )
    return f"checkpoint of step {newest.name}: go on with rlcore train --resume {shlex.quote(str(run_dir))}"


def _check_target(out: Path, resolved: Resolved) -> None:
    if resolved.run.debug.only == "rollout":
        raise ConfigError(f"--export {out}: --only rollout trains no model; leave it out.")
    if out.exists():
        raise ConfigError(f"--export {out}: exists already; name a directory that does not.")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ConfigError(f"--export {out}: {above} is no folder that can be written to.")


def _unseen(done: int, total: int) -> None:
    """Progress that the end of a run does not show."""


def _resolve(program: Program, file: Layer | None, flags: Layer) -> Resolved:
    plugins = program.plugins
    selection = select(plugins.registry, file, flags)
    return resolve(selection, plugins.files)


@dataclass(frozen=True, kw_only=True)
class ModelOfRun:
    """What reads the checkpoints of a run."""

    model: ModelChoice
    trainer: Trainer
    plugin_files: tuple[PluginFile, ...]


def model_of(program: Program, run: Path, flag: str) -> ModelOfRun:
    """The model of the run in the folder `run`, whose data need no longer be there.

    Raises `CheckpointError` where it is no run's folder.
    """
    path = run / RUN_TOML
    if not path.is_file():
        raise CheckpointError(f"{flag}: found no {RUN_TOML} there, expected the folder of a run.")
    program, file = program.read(path, flag)
    values = {name: value for name, value in file.values.items() if name.partition(".")[0] in MODEL_TABLES}
    if Kind.MODEL not in values:
        raise CheckpointError(f"{flag}: {path} names no model, so it is not the {RUN_TOML} of a run.")
    selection = select(program.plugins.registry, replace(file, values=values), Layer(label="", values={}))
    return ModelOfRun(
        model=with_weights(resolve_model(selection)),
        trainer=trainer_of(selection).build(),
        plugin_files=program.plugins.files,
    )


def trainer_of(selection: Selection) -> Part[TrainerConfig]:
    """The trainer that is chosen. `ConfigError` where none is, `PluginError` where the default clashes."""
    if clash := selection.clashes.get(Kind.TRAINER):
        raise PluginError(clash)
    if Kind.TRAINER not in selection.entries:
        raise ConfigError(f"trainer: nothing chooses it, expected {selection.registry.offer(Kind.TRAINER)}.")
    return resolve_part(selection.entries[Kind.TRAINER], selection.settings())


def with_weights(model: ModelChoice) -> ModelChoice:
    """Downloads what a hub id still lacks."""
    if not model.hub:
        return model
    return replace(model, path=str(directory_of(model.name, model.adopting)), hub=False)


def check_before_start(resolved: Inference, registry: Registry) -> None:
    """What a run, an evaluation and a dry run of either look at. Raises `UserError`."""
    _check_pass_through(resolved)
    plugins = {
        entry.record.factory: entry.provider
        for entry in registry.entries()
        if isinstance(entry.record, Component)
    }
    for part in resolved.parts():
        check_factory(part.factory, part.name, plugins.get(part.factory))
        if part.adapter:
            check_factory(part.adapter, part.name)
    check_frozen(resolved)


def _check_pass_through(resolved: Inference) -> None:
    """Asks trainer and engine, which import their libraries, only where a field of theirs is given."""
    if isinstance(resolved, Resolved) and resolved.trainer_fields:
        resolved.trainer.build().check_fields(resolved.trainer_fields)
    if isinstance(resolved, Resolved):
        for role in resolved.role_fields:
            with of_role(role):
                resolved.trainer.build().check_fields(resolved.fields_of(role))
    if resolved.engine_fields:
        resolved.engine.build().check_fields(resolved.engine_fields)
    for name in engine_groups(resolved.run):
        table = f"{ENGINE_GROUP}.{name}"
        resolved.engine.build().check_fields(group_fields(name, resolved), table=table)
    if resolved.frozen_fields:
        for name in frozen_models(resolved.run):
            resolved.engine.build().check_fields(fields_of(name, resolved), table=f"{FROZEN}.{name}")


def _run_dir(run_dir: Path | None, resume: Path | None) -> Path | None:
    """Where the run writes: a folder that is new or empty, the resumed run's own, or None: a new one."""
    if resume is not None:
        if run_dir is not None:
            raise ConfigError(
                "--run-dir and --resume exclude each other; a resumed run writes into its own folder, "
                f"{resume}."
            )
        return resume
    if run_dir is not None:
        check_new(run_dir)
    return run_dir
