"""`rlcore import`: the flags of another framework's run as a TOML of rlcore."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlcore import ConfigError, dump_settings, replace_file
from rlcore_cli.program import Program
from rlcore_import.arguments import variables
from rlcore_import.frameworks import FRAMEWORKS, Framework
from rlcore_import.translation import FlagVerdict, Row, Translation, variables_of

if TYPE_CHECKING:
    from rich.table import Table

FAULTS = (FlagVerdict.IMPOSSIBLE, FlagVerdict.OPEN, FlagVerdict.UNKNOWN)
COLOURS = {FlagVerdict.TRANSLATED: "green", **dict.fromkeys(FAULTS, "red")}
WIDTH = 120


@click.group("import")
def import_runs() -> None:
    """Turn the flags of another framework's run into a TOML for rlcore train --config."""


def _add(name: str, what: str) -> None:
    """Adds the command `name`; `what`: its help."""

    @import_runs.command(
        name,
        help=f"{what}\n\n{OUTCOME}",
        context_settings={
            "ignore_unknown_options": True,
            "allow_extra_args": True,
            "allow_interspersed_args": True,
        },
    )
    @click.option(
        "--out",
        "-o",
        "output",
        type=click.Path(path_type=Path),
        help="Write the TOML here, not to stdout.",
    )
    @click.option(
        "--var",
        "pairs",
        multiple=True,
        metavar="NAME=VALUE",
        help="The value of a variable of the script.",
    )
    @click.option("--ignore-unknown", "ignore", is_flag=True, help="Leave unknown flags out.")
    @click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="FILE | FLAG…")
    @click.pass_obj
    def run(
        program: Program,
        /,
        output: Path | None,
        pairs: tuple[str, ...],
        ignore: bool,
        words: tuple[str, ...],
    ) -> None:
        _import(program, FRAMEWORKS[name](), output, pairs, ignore, words)


OUTCOME = """Flags after a file override its own. One flag without a value asks what stands for it. The TOML
goes to stdout, and a table of what became of each flag to stderr. A flag that rlcore does not know ends the
command, after the table, unless --ignore-unknown leaves it out."""
_add("slime", "Translate a run of slime: a run script, or its flags.")
_add("verl", "Translate a run of verl: a run script, its overrides (KEY=VALUE), or a YAML of hydra.")


_add(
    "trl",
    "Translate a run of TRL: a Python program, which is read and not executed, or the flags of a trainer. "
    "--num_processes says how many devices accelerate starts it on.",
)


def _import(
    program: Program,
    framework: Framework,
    output: Path | None,
    pairs: tuple[str, ...],
    ignore: bool,
    words: tuple[str, ...],
) -> None:
    if len(words) == 1 and (rule := framework.table().find(words[0])):
        click.echo(": ".join(filter(None, (words[0], *rule.summary))))
        return
    if not words:
        raise ConfigError("found nothing to import, expected a run script or flags such as --lr 1e-6.")
    translation = framework.translate(framework.read(words, variables(pairs)), program.plugins.registry)
    settings = translation.settings
    if output is not None and translation.files:
        settings["reward"] = [_beside(output, name, translation.files) for name in settings.get("reward", [])]
    text = f"# From a run of {framework.name}, by rlcore import.\n" + dump_settings(settings)
    _report(translation, framework.name)
    _name_open(translation.rows)
    unknown = [row.flag for row in translation.rows if row.outcome.verdict is FlagVerdict.UNKNOWN]
    if unknown and not ignore:
        raise ConfigError(
            f"{', '.join(unknown)}: unknown; correct the name, or add --ignore-unknown to leave it out."
        )
    if output is None:
        click.echo(text, nl=False)
    else:
        with replace_file(output) as draft:
            draft.write_text(text)
    for file, content in translation.files.items():
        if output is None:
            click.echo(
                f"The TOML names {file}; write it, or let --out write it beside the TOML:\n{content}",
                err=True,
            )
            continue
        with replace_file(output.with_name(file)) as draft:
            draft.write_text(content)
        click.echo(f"Beside it: {output.with_name(file)}, which the TOML names.", err=True)


def _beside(output: Path, name: str, files: Mapping[str, str]) -> str:
    """A reward's name, where a file that is written beside the TOML has it."""
    file, colon, function = name.partition(":")
    return f"{output.with_name(file)}:{function}" if colon and file in files else name


def _report(translation: Translation[Any], name: str) -> None:
    from rich.console import Console

    rows = translation.rows

    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=WIDTH)
    console.print(_table(rows, name))
    counts = Counter(row.outcome.verdict for row in rows)
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), highlight=False)
    defaults = ", ".join(f"{name} = {json.dumps(value)}" for name, value in translation.untouched().items())
    console.print(
        f"In the TOML as well, {name}'s defaults and what follows from the flags: {defaults}",
        highlight=False,
        markup=False,
    )


def _name_open(rows: list[Row]) -> None:
    """Which variables to give, where flags depend on them."""
    rows = [row for row in rows if row.outcome.verdict is FlagVerdict.OPEN and variables_of(row.values)]
    if names := variables_of([value for row in rows for value in row.values]):
        left = ", ".join(row.flag for row in rows)
        flags = " ".join(f"--var {name}=VALUE" for name in names)
        click.secho(
            f"Left out, for rlcore does not know their variables: {left}. Add {flags}.", fg="red", err=True
        )


def _table(rows: list[Row], name: str) -> Table:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE)
    table.add_column(name, overflow="fold", max_width=46)
    table.add_column("", no_wrap=True)
    table.add_column("rlcore", overflow="fold")
    for row in sorted(rows, key=lambda row: list(FlagVerdict).index(row.outcome.verdict)):
        colour = COLOURS.get(row.outcome.verdict, "default")
        verdict = f"[{colour}]{row.outcome.verdict}[/]"
        table.add_row(escape(" ".join((row.flag, *row.values))), verdict, escape(row.outcome.text))
    return table
