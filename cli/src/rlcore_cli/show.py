"""`rlcore plugins show NAME`: a part, where it comes from, and its settings."""

import importlib.util
from collections.abc import Iterable, Iterator

import click
from pydantic.fields import FieldInfo

from rlcore.api.config import Config, fields_of, flag_name
from rlcore.api.errors import PluginError, did_you_mean
from rlcore.api.records import Algorithm, Kind
from rlcore.plugins.registry import LIST_KINDS, Entry, PluginInfo, Registry
from rlcore_cli.program import Program

FLAGS = {Kind.ALGORITHM: "algo", Kind.SOURCE: "task"}
"""The flag that chooses a part, where it is not that of its kind."""


@click.command()
@click.argument("name")
@click.pass_obj
def show(program: Program, name: str) -> None:
    """Show the parts, or the plugin, called NAME: who offers them, how they are chosen, their settings."""
    registry = program.plugins.registry
    entries = [entry for entry in registry.entries() if name in _names(entry)]
    if not entries:
        raise PluginError(_missing(registry, program.plugins.infos, name))
    for place, entry in enumerate(entries):
        click.echo("\n" * bool(place) + "\n".join(_lines(entry)))


def _names(entry: Entry) -> tuple[str, ...]:
    return entry.record.name, entry.provider.name, entry.provider.dist


def _missing(registry: Registry, infos: Iterable[PluginInfo], name: str) -> str:
    known = {entry.record.name for entry in registry.entries()} | {info.name for info in infos}
    return f"plugins show: nothing is called {name!r}.{did_you_mean(name, known)}{registry.broken_note()}"


def _lines(entry: Entry) -> Iterator[str]:
    record, provider = entry.record, entry.provider
    yield f"{entry.kind} {record.name}: {record.summary}"
    yield f"  from       {provider} ({provider.origin})"
    yield f"  chosen by  --{FLAGS.get(entry.kind, flag_name(entry.kind)[2:])} {record.name}"
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


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _file(factory: str) -> str:
    """Where the factory's module lies; it is not imported, but its package is."""
    module = factory.partition(":")[0]
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
