"""`rlcore plugins`: what is installed, and what is broken."""

import json
from collections.abc import Iterator, Sequence

import click

from rlcore.api.records import Component
from rlcore_cli.naming import ADAPTER, offers
from rlcore_cli.program import Commands, LazyCommand, Program, help_of

HEADINGS = ("kind", "name", "distribution", "version")


@click.group(cls=Commands, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def plugins(context: click.Context, as_json: bool) -> None:
    """List every part that a plugin offers, and the plugins that could not be loaded.

    A `reward_adapter` makes rewards of functions (`--reward FILE.py:FUNCTION`).
    """
    if context.invoked_subcommand is None:
        _list(context.find_object(Program), as_json)


@plugins.command("list", short_help="The same as without a command.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def list_command(context: click.Context, as_json: bool) -> None:
    """List what is installed: the same as `rlcore plugins`."""
    _list(context.find_object(Program), as_json)


for record in (
    Component(
        name="show",
        factory="rlcore_cli.show:show",
        summary="Show a part, or all parts of a plugin.",
    ),
    Component(
        name="check",
        factory="rlcore_cli.check:check_command",
        summary="Test a part by the conformance suite of its kind.",
    ),
):
    plugins.add_command(LazyCommand(record))


def _list(program: Program | None, as_json: bool) -> None:
    assert program is not None, "the command runs inside the rlcore program"
    rows = list(_rows(program))
    failures = program.plugins.broken
    clashes = [*program.plugins.registry.clashes, *program.command_clashes.values()]
    if as_json:
        parts = [dict(zip((*HEADINGS, "summary"), row, strict=True)) for row in rows]
        rejects = [
            {
                "name": plugin.name,
                "distribution": plugin.dist,
                "version": plugin.version,
                "error": plugin.error,
            }
            for plugin in failures
        ]
        click.echo(json.dumps({"plugins": parts, "broken": rejects, "clashes": clashes}, indent=2))
        return
    for line in _table([HEADINGS, *(row[:4] for row in rows)]):
        click.echo(line)
    for plugin in failures:
        click.echo(f"broken: {plugin.name} ({plugin.dist} {plugin.version}): {plugin.error}")
    for clash in clashes:
        click.echo(f"clash: {clash}")


def _rows(program: Program) -> Iterator[tuple[str, ...]]:
    for offer in offers(program):
        summary = offer.entry.record.summary if offer.entry else ""
        summary = help_of(offer.command) if offer.command else summary
        yield (offer.kind, offer.name, offer.provider.dist, offer.provider.version, summary)
    adapters = program.plugins.adapters
    for provider in dict.fromkeys(adapter.provider for adapter in adapters):
        forms = [
            adapter.record.expected
            for adapter in adapters
            if adapter.provider == provider and adapter.record.expected
        ]
        yield (ADAPTER, provider.name, provider.dist, provider.version, " or ".join(forms))


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
