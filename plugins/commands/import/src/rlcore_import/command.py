"""`rlcore import`: the flags of another framework's run as a TOML of rlcore."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlcore import ConfigError, dump_settings, replace_file
from rlcore_cli.program import Program
from rlcore_import.arguments import Arguments, of_script, of_words, variables
from rlcore_import.translation import FlagVerdict, Row, Translation, variables_of

if TYPE_CHECKING:
    from rich.table import Table

COLOURS = {
    FlagVerdict.TRANSLATED: "green",
    FlagVerdict.IMPOSSIBLE: "red",
    FlagVerdict.OPEN: "red",
    FlagVerdict.UNKNOWN: "red",
}
WIDTH = 120


@click.group("import")
def import_runs() -> None:
    """Turn the flags of another framework's run into a TOML for rlcore train --config."""


@import_runs.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "allow_interspersed_args": True,
    }
)
@click.option(
    "--out", "-o", "output", type=click.Path(path_type=Path), help="Write the TOML here, not to stdout."
)
@click.option(
    "--var", "given", multiple=True, metavar="NAME=VALUE", help="The value of a shell variable of the script."
)
@click.option("--ignore-unknown", "ignore", is_flag=True, help="Leave unknown flags out.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="FILE | FLAG…")
@click.pass_obj
def slime(
    program: Program, /, output: Path | None, given: tuple[str, ...], ignore: bool, words: tuple[str, ...]
) -> None:
    """Translate a run of slime: a run script, or its flags. One flag without a value: say what stands for it.

    Flags after a script override its own. The TOML goes to stdout, and a table of what became of each flag to
    stderr. A flag that rlcore does not know ends the command, after the table, unless --ignore-unknown leaves
    it out.
    """
    from rlcore_import.slime.translate import table, translate

    if len(words) == 1 and (rule := table().find(words[0])):
        click.echo(": ".join(filter(None, (words[0], *rule.told))))
        return
    translation = translate(_arguments(words, variables(given)), program.plugins.registry)
    text = "# From a run of slime, by rlcore import.\n" + dump_settings(translation.settings)
    _report(translation)
    _name_open(translation.rows)
    unknown = [row.flag for row in translation.rows if row.said.verdict is FlagVerdict.UNKNOWN]
    if unknown and not ignore:
        raise ConfigError(
            f"{', '.join(unknown)}: unknown; correct the name, or add --ignore-unknown to leave it out."
        )
    if output is None:
        click.echo(text, nl=False)
        return
    with replace_file(output) as draft:
        draft.write_text(text)


def _arguments(words: tuple[str, ...], given: dict[str, str]) -> Arguments:
    if not words:
        raise ConfigError("found nothing to import, expected a run script or flags such as --lr 1e-6.")
    first = Path(words[0])
    if words[0].startswith("--") or first.suffix == ".py" or words[0].startswith("python"):
        arguments = of_words(words)
        if not arguments.flags:
            raise ConfigError(f"{words[0]}: found no flags, expected them or the shell script that has them.")
        return arguments
    script, more = of_script(first, given), of_words(words[1:])
    return replace(script, flags={**script.flags, **more.flags}, entry=more.entry or script.entry)


def _report(translation: Translation[Any]) -> None:
    from rich.console import Console

    rows = translation.rows

    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=WIDTH)
    console.print(_table(rows))
    counts = Counter(row.said.verdict for row in rows)
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), highlight=False)
    own = ", ".join(f"{name} = {json.dumps(value)}" for name, value in translation.untouched().items())
    console.print(
        f"In the TOML as well, slime's defaults and what follows from the flags: {own}",
        highlight=False,
        markup=False,
    )


def _name_open(rows: list[Row]) -> None:
    """Which variables to give, where flags depend on them."""
    rows = [row for row in rows if row.said.verdict is FlagVerdict.OPEN and variables_of(row.values)]
    if names := variables_of([value for row in rows for value in row.values]):
        left = ", ".join(row.flag for row in rows)
        given = " ".join(f"--var {name}=VALUE" for name in names)
        click.secho(
            f"Left out, for rlcore does not know their variables: {left}. Add {given}.", fg="red", err=True
        )


def _table(rows: list[Row]) -> Table:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE)
    table.add_column("slime", overflow="fold", max_width=46)
    table.add_column("", no_wrap=True)
    table.add_column("rlcore", overflow="fold")
    for row in sorted(rows, key=lambda row: list(FlagVerdict).index(row.said.verdict)):
        colour = COLOURS.get(row.said.verdict, "default")
        verdict = f"[{colour}]{row.said.verdict}[/]"
        table.add_row(escape(" ".join((row.flag, *row.values))), verdict, escape(row.said.text))
    return table
