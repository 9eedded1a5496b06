"""`rlcore convert` and `rlcore export`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlcore.api.ability import Ability
from rlcore.api.errors import CheckpointError, ConfigError
from rlcore.api.lora import ADAPTER_CONFIG
from rlcore.checkpoint.folder import write_atomically
from rlcore.compose.abilities import Demand, require
from rlcore.compose.run_checks import bridge_complaints
from rlcore.config.layers import Layer
from rlcore.preparation.run_folder import RUN_TOML
from rlcore_cli.program import Program
from rlcore_cli.resolve import resolve_model
from rlcore_cli.select import select
from rlcore_cli.train import model_of, trainer_of
from rlcore_toolkit import check_new

if TYPE_CHECKING:
    from rlcore.api.plugin_file import PluginFile
    from rlcore.api.trainer import (
        ConversionReport,
        ConvertingTrainer,
        ProgressCallback,
        SavedWeights,
        Trainer,
    )

_PATH = click.Path(path_type=Path)
_ranks = click.option(
    "--ranks", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that share the work."
)


@click.command()
@click.argument("source", metavar="IN", type=_PATH)
@click.argument("out", type=_PATH)
@_ranks
@click.option(
    "--fp8",
    type=click.IntRange(min=1),
    metavar="SIZE",
    help="Write the directory IN in FP8, with a scale for each block of SIZE x SIZE (published ones: 128). "
    "Memory holds one file of IN at a time.",
)
@click.pass_obj
def convert(program: Program, source: Path, out: Path, ranks: int, fp8: int | None) -> None:
    """Convert weights between checkpoints and Hugging Face directories, one tensor at a time.

    If IN is RUN/checkpoints/N of a run, OUT becomes a directory that transformers and SGLang load. If IN
    is such a directory, OUT becomes a checkpoint of it, which `rlcore train … --weights OUT` reads under any
    layout. With --fp8, OUT becomes the same directory in FP8. OUT/checksums.json has the checksum of each
    file and tensor.
    """
    is_checkpoint = (source.resolve().parent.parent / RUN_TOML).is_file()
    if not (source.is_dir() and (is_checkpoint or (source / "config.json").is_file())):
        raise CheckpointError(
            f"{source}: expected RUN/checkpoints/N of a run, or a Hugging Face directory with a config.json."
        )
    if fp8 is not None:
        if ranks > 1:
            raise ConfigError(
                f"--ranks: found {ranks} with --fp8, which is the work of one process; leave it out."
            )
        _to_fp8(source, out, fp8)
        return
    from rlcore.api.trainer import SavedWeights
    from rlcore_cli.weights_source import of_checkpoint, of_model

    if not (source / "config.json").is_file():
        run = model_of(program, source.resolve().parent.parent, f"{source}")
        _to_hf(run.trainer, of_checkpoint(source, run.model), out, ranks, run.plugin_files)
        return
    files = program.plugins.files
    selection = select(program.plugins.registry, None, Layer(label="", values={"model": str(source)}))
    part = trainer_of(selection)
    require(part, Demand(ability=Ability.OWN_WEIGHTS, found=f"{source}", instead="use it as it is"))
    model = resolve_model(selection)
    for complaint in bridge_complaints(model.family, part):
        raise ConfigError(complaint)
    trainer: ConvertingTrainer = part.build()
    spec = of_model(Path(model.path or source), model.bridge)
    weights = trainer.weights_in(source)
    if weights is not None:
        _to_hf(trainer, SavedWeights(spec=spec, folder=weights), out, ranks, files)
        return
    _print(_with_progress("Writing", lambda advance: trainer.from_hf(spec, out, advance, ranks, files)))
    click.echo(f"{out}: the weights of {source}, for rlcore train --weights {out}.")


def _to_fp8(source: Path, out: Path, size: int) -> None:
    if not any(source.glob("*.safetensors")):
        raise CheckpointError(
            f"--fp8: {source} has no *.safetensors. Make a Hugging Face directory of a checkpoint first: "
            f"rlcore convert {source} FULL; save other weights with transformers' save_pretrained."
        )
    from rlcore_cli.fp8_directory import to_fp8

    _print(_with_progress("Writing", lambda advance: to_fp8(source, out, (size, size), advance)))
    click.echo(f"{out}: the model of {source} in FP8, for rlcore train --model {out}.")


@click.command()
@click.argument("run", type=_PATH)
@click.argument("out", type=_PATH)
@_ranks
@click.option(
    "--adapter/--merged",
    help="Write the adapter of a run with --lora.rank alone, as PEFT loads it, or merged into the model.",
)
@click.option("--policy", default="", metavar="NAME", help="A policy beside the run's own, of [policy.NAME].")
@click.pass_obj
def export(program: Program, run: Path, out: Path, ranks: int, adapter: bool, policy: str) -> None:
    """Write the model of RUN's newest checkpoint to the folder OUT, as transformers and engines load it."""
    from rlcore_cli.weights_source import checkpoint_of, of_checkpoint

    trained = model_of(program, run, f"{run}")
    source = of_checkpoint(checkpoint_of(run), trained.model, policy)
    if adapter:
        _copy_adapter(source.folder, out)
    else:
        _to_hf(trained.trainer, source, out, ranks, trained.plugin_files)


def _copy_adapter(policy: Path, out: Path) -> None:
    """The files of PEFT among those of a checkpoint's policy."""
    if not (policy / ADAPTER_CONFIG).is_file():
        raise CheckpointError(f"--adapter: {policy} holds no adapter, but a whole model; leave it out.")
    check_new(out)
    with write_atomically(out, marked=False) as folder:
        for file in policy.glob("adapter_*"):
            shutil.copy(file, folder)
    click.echo(f"{out}: the adapter of {policy.parent}, as PEFT loads it.")


def _to_hf(
    trainer: Trainer, source: SavedWeights, out: Path, ranks: int, files: tuple[PluginFile, ...]
) -> None:
    def work(advance: ProgressCallback) -> ConversionReport:
        report: ConversionReport = trainer.to_hf(source, out, advance, ranks, files)
        return report

    _print(_with_progress("Writing", work))
    click.echo(f"{out}: the model of {source.folder.parent}, as transformers and engines load it.")


def _with_progress(what: str, work: Callable[[ProgressCallback], ConversionReport]) -> ConversionReport:
    """`work` with a progress bar on a terminal's standard error."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    with Progress(TextColumn(what), *columns, console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(what, total=None)
        return work(lambda done, total: progress.update(task, advance=done, total=total))


def _print(report: ConversionReport) -> None:
    for name, file in report.files.items():
        click.echo(f"{file['sha256']}  {file['bytes']:>14,}  {name}")
    click.echo(f"{len(report.tensors)} tensors, {report.nbytes:,} bytes; checksums.json has their checksums.")
