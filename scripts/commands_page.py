"""Write docs/reference/commands.md: the commands that are installed, as `--help` tells of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from rlcore.plugins.loader import Switches
from rlcore_cli import plugin
from rlcore_cli.main import EXIT_CODES, group
from rlcore_cli.options import COMMAND, PARTS, GroupedOption, SelectedCommand
from rlcore_cli.program import start

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "commands.md"
HEAD = """# Commands

Here is each command with its options, in the words of its `--help`. `python scripts/commands_page.py`
makes this page from the commands that are installed. A plugin adds commands by the hook
[`rlcore_commands`](../hooks.md).

## Exit codes

"""
SETTINGS = "It takes [the settings of the run and of the chosen parts](../settings.md) too.\n"
NO_SETTINGS = (COMMAND, PARTS)
"""Groups of options that docs/settings.md does not have."""


class Tables(click.HelpFormatter):
    """Keeps what a help text lists: heading → rows."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[tuple[str, str]]] = {}
        self._heading = ""

    def write_heading(self, heading: str) -> None:
        self._heading = heading

    def write_dl(self, rows: Iterable[tuple[str, str]], *_: int, **__: int) -> None:
        self.found[self._heading] = list(rows)


def page() -> str:
    """The whole page."""
    program = start(Switches(), {"cli": plugin})
    root = group(program).make_context("rlcore", [], obj=program, resilient_parsing=True)
    return "\n".join([HEAD + _table("exit code", EXIT_CODES.items()), *_sections(root)])


def _sections(context: click.Context) -> Iterator[str]:
    """That of a command, then those of the commands below it."""
    yield _section(context)
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.commands[name]
            yield from _sections(command.make_context(name, [], parent=context, resilient_parsing=True))


def _section(context: click.Context) -> str:
    command, tables = context.command, Tables()
    command.format_options(context, tables)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## {context.command_path}\n", f"    {usage}\n", _prose(command.help)]
    settings = set()
    if isinstance(command, SelectedCommand):
        settings = {one.group for one in command.params if isinstance(one, GroupedOption)} - {*NO_SETTINGS}
    for heading, rows in tables.found.items():
        if heading not in settings:
            parts.append(_table(heading.lower(), rows))
    return "\n".join([*parts, *[SETTINGS] * bool(settings), *[_prose(command.epilog)] * bool(command.epilog)])


def _prose(text: str | None) -> str:
    return _escaped(inspect.cleandoc(text or "")) + "\n"


def _table(heading: str, rows: Iterable[tuple[object, str]]) -> str:
    lines = [f"| {heading} | |", "| --- | --- |"]
    lines += [f"| `{_cell(str(name))}` | {_escaped(_cell(text))} |" for name, text in rows if text]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Help is plain text: what Markdown would read in it is none."""
    return text.replace("<", "&lt;").replace("[", "\\[")


if __name__ == "__main__":
    PAGE.write_text(page())
