"""`rlcore plugins show NAME`: a part, where it comes from, and its settings."""

import importlib.util
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

import click
from pydantic.fields import FieldInfo

from rlcore.api.config import Config, fields_of, flag_name
from rlcore.api.records import Algorithm, Kind
from rlcore.plugins.loader import asked_range
from rlcore.plugins.registry import HOOKS, LIST_KINDS, Entry, is_file
from rlcore_cli.naming import Offer, named
from rlcore_cli.program import Program

FLAGS = {Kind.ALGORITHM: "algo", Kind.SOURCE: "task"}
"""The flag that chooses a part, where it is not that of its kind."""


@click.command(short_help="Show a part, or all parts of a plugin.")
@click.argument("name")
@click.pass_obj
def show(program: Program, name: str) -> None:
    """Show the parts, or the plugin, called NAME: who offers them, how they are chosen, their settings."""
    for place, offer in enumerate(named(program, name, "plugins show")):
        click.echo("\n" * bool(place) + "\n".join(_lines(offer)))


def _lines(offer: Offer) -> Iterator[str]:
    provider, entry = offer.provider, offer.entry
    summary = entry.record.summary if entry else offer.command.get_short_help_str() if offer.command else ""
    yield f"{offer.kind} {offer.name}: {summary}"
    lies = "" if is_file(provider.version) else f" ({provider.origin}: {_file(provider.origin)})"
    yield f"  from       {provider}{lies}"
    yield f"  asks for   {_asked_for(provider.dist)}"
    yield f"  hook       {_hook(offer)}"
    if entry is None:
        yield f"  run by     rlcore {offer.name}"
        return
    record = entry.record
    file = f"--plugin {provider.dist} " if provider.is_file else ""
    yield f"  chosen by  {file}--{FLAGS.get(entry.kind, flag_name(entry.kind)[2:])} {record.name}"
    if isinstance(record, Algorithm):
        yield f"  paper      {record.paper}"
        yield from (f"  {kind:<10} {_listed(parts)}" for kind, parts in record.parts.items())
        yield from _table(
            "sets", [(flag_name(key), str(value), "") for key, value in record.settings.items()]
        )
        return
    yield f"  made by    {record.factory} ({_file(record.factory)})"
    yield from (f"  suggests   {flag_name(key)} {_listed(value)}" for key, value in record.suggests.items())
    yield from _table("settings", list(_settings(entry)))


def _hook(offer: Offer) -> str:
    """The one that yields it."""
    if offer.entry is None:
        return "rlcore_commands"
    return next(hook for hook, (kind, _) in HOOKS.items() if kind is offer.entry.kind)


def _asked_for(dist: str) -> str:
    """The range of rlcore that a distribution requires."""
    try:
        return f"rlcore{asked_range(distribution(dist)) or ' of any version'}"
    except PackageNotFoundError:
        return "rlcore of any version: it is a file"


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _file(factory: str) -> str:
    """Where the factory's module lies; it is not imported, but its package is."""
    module = factory.partition(":")[0]
    if module in sys.modules:  # a file of `--plugin`, which no import finds
        return getattr(sys.modules[module], "__file__", None) or "no file"
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    return spec.origin or "no file" if spec else "cannot be found"


def _settings(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Flag, default and help of each."""
    table = f"{entry.kind}.{entry.record.name}" if entry.kind in LIST_KINDS else str(entry.kind)
    config: type[Config] = entry.config
    for name, field in fields_of(config).items():
        yield flag_name(f"{table}.{name}"), _default(field), field.description or ""


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else str(field.get_default(call_default_factory=True))


def _table(heading: str, rows: list[tuple[str, str, str]]) -> Iterator[str]:
    if rows:
        yield f"  {heading}"
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    for flag, default, text in rows:
        yield f"    {flag:<{widths[0]}}  {default:<{widths[1]}}  {text}".rstrip()
