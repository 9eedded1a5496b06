"""What every command gets as its context object, and the options that are read before all others."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pluggy

from rlcore.api.errors import PluginError, ended
from rlcore.plugins.loader import Plugins, Switches, load

OFF = "no:"
OF_FUNCTIONS = re.compile(r"(eval\.\w+\.)?(reward|generator)")
"""The settings that take FILE.py:FUNCTION beside a name."""
FUNCTION = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*(?:=.*)?)")
"""FILE.py:FUNCTION, a reward with its weight."""


@dataclass(frozen=True)
class Program:
    """The loaded plugins and the switches that led to them (`click.pass_obj` hands it to a command).

    `own`: the modules that are there whatever the switches say, by the names of their plugins.
    """

    switches: Switches
    own: Mapping[str, ModuleType]
    plugins: Plugins

    def with_files(self, paths: Iterable[Path]) -> "Program":
        """The program with further plugin files; itself where there is none that it lacks."""
        known = {path.resolve() for path in self.switches.files}
        new = [path for path in paths if path.resolve() not in known]
        if not new:
            return self
        made = start(replace(self.switches, files=(*self.switches.files, *new)), self.own)
        made.require_files()
        return made

    def require_files(self) -> None:
        """Whoever names a plugin file means it: raises `PluginError` for one that is broken."""
        named = {file.path for file in self.plugins.files}
        for broken in self.plugins.broken:
            if broken.dist in named:
                raise PluginError(ended(f"--plugin {broken.dist}: {broken.error}"))


def offered(program: Program, implementation: pluggy.HookImpl) -> list[click.Command]:
    """The commands of one plugin. One that fails costs a warning, or, when strict, the program."""
    name = implementation.plugin_name
    try:
        commands: Iterable[click.Command] = implementation.function()  # type: ignore[assignment]  # untyped hook
        return list(commands)
    except Exception as error:
        whose = next(info for info in program.plugins.infos if info.name == name)
        sentence = f"plugin {name!r} of {whose} cannot give its commands: {type(error).__name__}: {error}"
        if program.switches.strict:
            raise PluginError(f"{sentence}.") from error
        click.echo(f"warning: {sentence}", err=True)
        return []


def start(switches: Switches, own: Mapping[str, ModuleType]) -> Program:
    """Load the plugins. Those that are slow are named on stderr."""
    plugins = load(switches, keep=own)
    for slow in plugins.slow:
        click.echo(f"warning: {slow}.", err=True)
    return Program(switches, own, plugins)


def split(args: Sequence[str]) -> tuple[Switches, list[str]]:
    """The switches in `args` and in the environment, and the other arguments.

    `-p no:NAME`, `--plugin FILE` and `--reward FILE.py:FUNCTION` decide which commands and flags exist, so
    they are read first, wherever they stand before a `--`.
    """
    switches, rest, waiting = Switches.from_environment(), [], list(args)
    off, files = [], []
    while waiting:
        argument = waiting.pop(0)
        following = waiting[0] if waiting else None
        if argument == "--":
            rest += [argument, *waiting]
            break
        if argument == "-p" and following is not None and following.startswith(OFF):
            off.append(waiting.pop(0).removeprefix(OFF))
        elif argument.startswith(f"-p{OFF}"):
            off.append(argument.removeprefix(f"-p{OFF}"))
        elif argument == "--plugin" and following is not None:
            files.append(Path(waiting.pop(0)))
        elif argument.startswith("--plugin="):
            files.append(Path(argument.removeprefix("--plugin=")))
        elif function := _function(rest[-1] if rest else "", argument):
            file, named = function
            files += [] if file in files else [file]
            rest.append(named)
        else:
            rest.append(argument)
    return replace(switches, off=tuple(off), files=tuple(files)), rest


def _function(before: str, argument: str) -> tuple[Path, str] | None:
    """The file, and the argument with the function's name alone, where it is FILE.py:FUNCTION."""
    option, equals, value = argument.partition("=")
    if not (equals and _takes_function(option)):
        option, equals, value = before, "", argument
    match = FUNCTION.fullmatch(value) if _takes_function(option) else None
    if match is None:
        return None
    return Path(match["file"]), f"{option}={match['name']}" if equals else match["name"]


def _takes_function(option: str) -> bool:
    return option.startswith("--") and OF_FUNCTIONS.fullmatch(option.removeprefix("--")) is not None


def functions_of(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`settings` with the names of functions alone in place of FILE.py:FUNCTION, and the files."""
    files: list[str] = []

    def name(value: Any) -> Any:
        if isinstance(value, list):
            return [name(one) for one in value]
        match = FUNCTION.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return value
        files.append(match["file"])
        return match["name"]

    named = {
        setting: name(value) if OF_FUNCTIONS.fullmatch(setting) else value
        for setting, value in settings.items()
    }
    return named, files


def early_options() -> list[click.Parameter]:
    """The same options as click shows them in a help text; `split` has taken every valid one away."""
    return [
        click.Option(
            ["--plugin"],
            metavar="FILE",
            expose_value=False,
            help="Load a plugin from a Python file (repeatable).",
        ),
        click.Option(
            ["-p", "switch_off"],
            metavar="no:NAME",
            callback=_refuse,
            expose_value=False,
            help="Leave a plugin out (repeatable).",
        ),
    ]


def _refuse(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise PluginError(f"-p: found {value!r}, expected no:NAME.")
