"""`rlcore eval`: a model on named sets, without a trainer; its options depend on what they choose."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rlcore.compose.selection import Selection
from rlcore.config.layers import Layer
from rlcore_cli import options
from rlcore_cli.evaluation import (
    CHOICES,
    evaluation_flags,
    resolve_evaluation,
    select_evaluation,
    to_toml,
    unknown,
)
from rlcore_cli.evaluation_run import EvalSummary
from rlcore_cli.program import Program, early_options
from rlcore_cli.train import (
    LOADING,
    check_before_start,
    file_layer,
    print_settings,
    program_of,
    with_weights,
)

_PATH = click.Path(path_type=Path)


class EvalCommand(click.Command):
    """Reads the choices first, then makes a command with the flags of what is chosen."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of that command. Raises `UserError` for a choice that does not exist."""
        choices = options.scan(args)
        program, file = file_layer(program_of(parent), choices)
        values = {name: value for name, value in choices.items() if name.partition(".")[0] in CHOICES}
        selection = select_evaluation(program.plugins.registry, file, Layer(label="", values=values))
        command = options.SelectedCommand(
            _options(selection, args),
            run=lambda flags, params: _run(program, file, flags, params),
            unknown=lambda name, layer, names: unknown(name, layer, selection, names),
            passed=options.passed_help(selection),
            name=self.name,
            help=self.help,
        )
        return command.make_context(info_name, args, parent=parent, **extra)


eval_command = EvalCommand("eval", help="Evaluate a model on named sets. Nothing is trained.")


def _options(selection: Selection, args: Sequence[str]) -> Iterator[click.Parameter]:
    group: dict[str, Any] = {"group": options.COMMAND}
    yield options.GroupedOption(
        ["--config"], metavar="FILE", type=_PATH, help="Settings from a TOML file.", **group
    )
    yield options.GroupedOption(
        ["--run-dir"],
        metavar="PATH",
        type=_PATH,
        help="Folder of samples and logs.  [default: runs/…]",
        **group,
    )
    yield options.GroupedOption(
        ["--dry-run"],
        is_flag=True,
        help="Print the resolved TOML, or JSON with --json, and start nothing.",
        **group,
    )
    yield options.GroupedOption(
        ["--json", "as_json"], is_flag=True, help="Print one JSON object on stdout.", **group
    )
    yield from early_options()
    for name, text in CHOICES.items():
        yield from options.choice(name, text, selection)
    yield from options.eval_parts(selection)
    for flag in evaluation_flags(selection):
        yield from options.setting(flag)
    yield from options.pass_through(args, selection)


def _run(program: Program, file: Layer | None, flags: Layer, params: options.Params) -> None:
    plugins = program.plugins
    stack = [layer for layer in (file, flags) if layer is not None]
    selection = select_evaluation(plugins.registry, file, flags)
    inference = resolve_evaluation(selection, stack, plugins.files)
    check_before_start(inference, plugins.registry)
    if params["dry_run"]:
        print_settings(to_toml(inference), as_json=params["as_json"])
        return
    inference = replace(inference, model=with_weights(inference.model))
    from rlcore_cli.display import TerminalDisplay
    from rlcore_machine import deferred_collection

    with deferred_collection(), TerminalDisplay(json=params["as_json"], steps=0) as display:
        display.phase(LOADING)
        from rlcore_cli.evaluation_run import evaluate

        summary = evaluate(inference, run_dir=params["run_dir"], display=display)
    if params["as_json"]:
        click.echo(summary.to_json())
    else:
        _print(summary)


_LAST = ("response_length_mean", "truncated", "unscored")


def _print(summary: EvalSummary) -> None:
    """A table with a column for each set."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    names = list(dict.fromkeys(name for metrics in summary.eval.values() for name in metrics))
    names.sort(key=lambda name: name in _LAST)
    table = Table(box=SIMPLE)
    table.add_column("set", no_wrap=True)
    for column in summary.eval:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_row("prompts", *(str(summary.prompts[column]) for column in summary.eval))
    for name in names:
        cells = [f"{metrics[name]:.4g}" if name in metrics else "" for metrics in summary.eval.values()]
        table.add_row(name, *cells)
    console = Console()
    console.print(table)
    console.print(f"{summary.seconds:.1f} s, samples: {summary.samples}", highlight=False, soft_wrap=True)
