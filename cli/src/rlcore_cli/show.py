"""`rlcore plugins show NAME`: a part, where it comes from, and its settings."""

import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

import click

from rlcore.api.config import Config, fields_of, flag_name
from rlcore.api.records import LIST_KINDS, Algorithm, Component, Kind
from rlcore.plugins.installed import asked_range
from rlcore.plugins.registry import RULES, Entry, is_file
from rlcore_cli.flags import default_text
from rlcore_cli.naming import Offer, offers_called
from rlcore_cli.program import Program, help_of

FLAGS = {Kind.ALGORITHM: "algo", Kind.SOURCE: "task"}
"""The flag that chooses a part, where it is not that of its kind."""
LEAST_WIDTH = 24
"""Characters of a line of help, on the narrowest terminal."""
CHOSEN = ("run_by", "chosen_by", "takes", "paper")
"""What a text shows of `_facts` before the settings, each in a line of its own."""


@click.command(short_help="Show a part, or all parts of a plugin.")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(program: Program, name: str, as_json: bool) -> None:
    """Show the parts, or the plugin, called NAME: who offers them, how they are chosen, their settings."""
    facts = [_facts(offer) for offer in offers_called(program, name, "plugins show", adapters=True)]
    if as_json:
        click.echo(json.dumps({"shown": facts}, indent=2, default=str))
        return
    for place, part in enumerate(facts):
        lines = [row for line in _lines(part) for row in _wrapped(line)]
        click.echo("\n" * bool(place) + "\n".join(lines))


def _facts(offer: Offer) -> dict[str, Any]:
    """The facts of a part, a recipe, a command or an adapter. What it has not is left out."""
    provider, entry, adapter = offer.provider, offer.entry, offer.adapter
    facts: dict[str, Any] = {
        "kind": offer.kind,
        "name": offer.name,
        "summary": _summary(offer),
        "distribution": provider.dist,
        "version": provider.version,
        "origin": provider.origin,
        "file": _file(provider.origin) if not provider.is_file else provider.dist,
        "asks_for": _required_range(provider.dist),
        "hook": _hook(offer),
    }
    file = f"--plugin {provider.dist} " if provider.is_file else ""
    if adapter is not None:
        facts["chosen_by"] = f"{file}--reward FILE.py:FUNCTION"
        facts["takes"] = "; ".join(", ".join(sorted(names)) for names in adapter.parameters)
        facts["made_by"], facts["made_in"] = adapter.factory_of, _file(adapter.factory_of)
        made = Component(name="NAME", factory=adapter.factory_of, summary="", config=adapter.config)
        config = Entry(kind=Kind.REWARD, record=made, provider=provider).config
        return {**facts, "settings": list(_settings(f"{Kind.REWARD}.NAME", config))}
    if entry is None:
        return {**facts, "run_by": f"rlcore {offer.name}"}
    record = entry.record
    facts["chosen_by"] = f"{file}--{FLAGS.get(entry.kind, flag_name(entry.kind)[2:])} {record.name}"
    if isinstance(record, Algorithm):
        return {**facts, "paper": record.paper, "parts": dict(record.parts), "sets": dict(record.settings)}
    facts["made_by"], facts["made_in"] = record.factory, _file(record.factory)
    table = f"{entry.kind}.{record.name}" if entry.kind in LIST_KINDS else str(entry.kind)
    return {**facts, "suggests": dict(record.suggests), "settings": list(_settings(table, entry.config))}


def _summary(offer: Offer) -> str:
    if offer.adapter:
        return f"makes a reward of {offer.adapter.expected or 'a function with these parameters'}"
    if offer.entry:
        return offer.entry.record.summary
    return help_of(offer.command) if offer.command else ""


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """What `_facts` gives, to read."""
    yield f"{facts['kind']} {facts['name']}: {facts['summary']}"
    lies = "" if is_file(facts["version"]) else f" ({facts['origin']}: {facts['file']})"
    yield f"  from       {facts['distribution']} {facts['version']}{lies}"
    yield f"  asks for   {facts['asks_for']}"
    yield f"  hook       {facts['hook']}"
    yield from (f"  {key.replace('_', ' '):<10} {facts[key]}" for key in CHOSEN if key in facts)
    if "made_by" in facts:
        yield f"  made by    {facts['made_by']} ({facts['made_in']})"
    yield from (f"  {kind:<10} {_text(parts)}" for kind, parts in facts.get("parts", {}).items())
    sets = [(flag_name(key), str(value), "") for key, value in facts.get("sets", {}).items()]
    yield from _table("sets", sets)
    suggests = facts.get("suggests", {}).items()
    yield from (f"  suggests   {flag_name(key)} {_text(value)}" for key, value in suggests)
    settings = facts.get("settings", ())
    yield from _table(
        "settings", [(setting["flag"], _default(setting), setting["help"]) for setting in settings]
    )


def _wrapped(line: str) -> list[str]:
    """The line, broken between words for the terminal."""
    room = max(_room(), LEAST_WIDTH)
    return wrap(line, room, subsequent_indent=" " * 13, break_long_words=False, break_on_hyphens=False)


def _room() -> int:
    return get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _hook(offer: Offer) -> str:
    """The hook that yields it."""
    if offer.entry is None:
        return "rlcore_reward_adapters" if offer.adapter else "rlcore_commands"
    return RULES[offer.entry.kind].hook


def _required_range(dist: str) -> str:
    """The range of rlcore that a distribution requires."""
    try:
        return f"rlcore{asked_range(distribution(dist).requires or ()) or ' of any version'}"
    except PackageNotFoundError:
        return "rlcore of any version: it is a file"


def _text(value: object) -> str:
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


def _settings(table: str, config: type[Config]) -> Iterator[dict[str, Any]]:
    """Flag, default and help of each. One without a `default` is required."""
    for name, field in fields_of(config).items():
        default = {} if field.is_required() else {"default": field.get_default(call_default_factory=True)}
        yield {"flag": flag_name(f"{table}.{name}"), **default, "help": field.description or ""}


def _default(setting: Mapping[str, Any]) -> str:
    return default_text(setting["default"]) if "default" in setting else "required"


def _table(heading: str, rows: list[tuple[str, str, str]]) -> Iterator[str]:
    if rows:
        yield f"  {heading}"
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    room = _room()
    beside = len(f"    {'':<{widths[0]}}  {'':<{widths[1]}}  ")
    for flag, default, text in rows:
        begin = f"    {flag:<{widths[0]}}  {default:<{widths[1]}}  "
        if beside + len(text) <= room:
            yield f"{begin}{text}".rstrip()
        else:
            yield begin.rstrip()
            yield from (f"        {line}" for line in wrap(text, max(room - 8, LEAST_WIDTH)))
