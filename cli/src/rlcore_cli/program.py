"""What every command gets as its context object, and the options that are read before all others."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from rlcore.api.errors import ConfigError, PluginError, described, did_you_mean, ended, one_line
from rlcore.api.factory import load as load_factory
from rlcore.api.records import NAME, Component, Kind
from rlcore.plugins.factories import check_factory
from rlcore.plugins.loader import Plugins, Switches, load
from rlcore.plugins.registry import FACTORY, PluginInfo, clash_sentence

if TYPE_CHECKING:
    from rlcore.api.config import Config
    from rlcore.api.run_config import RunConfig
    from rlcore.config.layers import Layer

OFF = "no:"
COMMAND = re.compile(r"[a-z][a-z0-9_-]*")
"""The form of a command's name."""
OF_FUNCTIONS = re.compile(r"(eval\.[\w-]+\.)?(reward|generator)")
"""The settings that take FILE.py:FUNCTION beside a name."""
DATA = re.compile(r"(eval\.[\w-]+\.)?data")
"""The settings that name files of prompts."""
FUNCTION = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*(?:=.*)?)")
"""FILE.py:FUNCTION, a reward with its weight."""


@dataclass(frozen=True)
class Function:
    """FILE.py:FUNCTION as a setting of `kind`. `at`: the flag, or the file and its key, that gave it."""

    kind: Kind
    at: str
    file: Path
    name: str

    def require(self, plugins: Plugins) -> None:
        """Raises `PluginError` where the file offers no part of that kind and name."""
        entries = [entry for entry in plugins.entries if entry.provider.is_file]
        offers = {
            (entry.kind, entry.record.name)
            for entry in entries
            if Path(entry.provider.dist).name == self.file.name
        }
        if (self.kind, self.name) in offers:
            return
        [module] = (sys.modules[file.module] for file in plugins.files if file.name == self.file.name)
        value = getattr(module, self.name, None)
        hook = next((name for name, value in vars(module).items() if hasattr(value, "rlcore_impl")), None)
        if hook and callable(value):
            raise PluginError(
                f"{self.at} {self.file}:{self.name}: {hook} in the file names what it offers; choose that by "
                f"--plugin {self.file} --{self.kind} NAME, or leave the hook out."
            )
        if self.kind is Kind.REWARD and callable(value) and not plugins.adapters:
            raise PluginError(
                f"{self.at} {self.file}:{self.name}: no plugin that is loaded makes rewards of functions; "
                "rlcore-functions does: name it in RLCORE_PLUGINS, or leave out -p no:functions."
            )
        if kinds := sorted(kind for kind, name in offers if name == self.name):
            fault = f"{self.name} is a {kinds[0]}"
        elif not callable(value):
            fault = f"the file has no {self.name}"
        elif not NAME.fullmatch(self.name):
            fault = "a name has lower-case letters, digits and underscores alone"
        elif getattr(value, "__module__", "") != module.__name__ and self.name not in vars(module).get(
            "__all__", ()
        ):
            fault = f"{self.name} is imported there, and __all__ does not list it"
        else:
            fault = f"by its parameters {self.name} is no {self.kind}"
        hint = did_you_mean(self.name, sorted(name for kind, name in offers if kind is self.kind))
        raise PluginError(
            f"{self.at} {self.file}:{self.name}: {fault}, expected {self._expected(plugins)}.{hint}"
        )

    def _expected(self, plugins: Plugins) -> str:
        if self.kind is Kind.GENERATOR:
            return "async def NAME(ctx, sample)"
        forms = [adapter.record.expected for adapter in plugins.adapters if adapter.record.expected]
        return " or ".join(forms) or "one with the parameters that a plugin's adapter knows"


class LazyCommand(click.Command):
    """A name and a line of help: all of a command until it is chosen."""

    def __init__(self, record: Component) -> None:
        super().__init__(record.name, short_help=record.summary)
        self.factory = record.factory

    def load(self) -> click.Command:
        """The command itself. Raises `PluginError` where there is none."""
        with redirect_stdout(sys.stderr):  # stdout is the answer, of --json for example
            command = load_factory(self.factory, str(self.name))
        if not isinstance(command, click.Command):
            found = f"found {described(command)} at {self.factory}"
            raise PluginError(f"{self.name!r}: {found}, expected a click.Command.")
        return command


def loaded(command: click.Command) -> click.Command:
    """The whole command. Raises `PluginError` where there is none."""
    return command.load() if isinstance(command, LazyCommand) else command


class Commands(click.Group):
    """Commands that are loaded when they are chosen. The help has the whole first paragraph of theirs."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        return loaded(command) if command else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = sorted(self.commands.items())
        rows = [(name, help_of(command)) for name, command in commands if not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@dataclass(frozen=True)
class Program:
    """The loaded plugins and the switches that led to them (`click.pass_obj` hands it to a command).

    `fixed`: the modules that are there whatever the switches say, by the names of their plugins.
    """

    switches: Switches
    fixed: Mapping[str, ModuleType]
    plugins: Plugins
    functions: Sequence[Function] = ()

    @cached_property
    def commands(self) -> list[tuple[PluginInfo, click.Command]]:
        """Each command with its plugin.

        A plugin that cannot give its commands costs a warning, or, when strict, the program.
        """
        infos = {info.name: info for info in self.plugins.infos}
        pairs: list[tuple[PluginInfo, click.Command]] = []
        for implementation in self.plugins.manager.hook.rlcore_commands.get_hookimpls():
            info = infos[implementation.plugin_name]
            try:
                with redirect_stdout(sys.stderr):
                    commands: Iterable[Any] = list(implementation.function())  # type: ignore[call-overload]
                found = [_command(command) for command in commands]
                for command in found if self.switches.strict else ():
                    require(command, info)
                pairs += [(info, command) for command in found]
            except (Exception, SystemExit) as error:
                sentence = f"plugin {info.name!r} of {info} cannot give its commands: {one_line(error)}"
                if self.switches.strict:
                    raise PluginError(f"{sentence}.") from error
                click.echo(f"warning: {sentence}", err=True)
        return pairs

    @cached_property
    def command_clashes(self) -> dict[str, str]:
        """A sentence for each command that several plugins offer, by its name."""
        providers: dict[str, list[PluginInfo]] = {}
        for info, command in self.commands:
            providers.setdefault(str(command.name), []).append(info)
        return {
            name: clash_sentence(f"command {name!r}", *several)
            for name, several in providers.items()
            if len(several) > 1
        }

    def with_files(self, paths: Iterable[Path], functions: Sequence[Function] = ()) -> "Program":
        """The program with further plugin files, and functions in them."""
        present = {path.resolve() for path in self.switches.files}
        new = [path for path in paths if path.resolve() not in present]
        program = replace(self, functions=functions)
        if new:
            program = start(replace(self.switches, files=(*self.switches.files, *new)), self.fixed, functions)
        program.require_files()
        return program

    def read(self, path: Path, flag: str = "--config") -> "tuple[Program, Layer]":
        """The program with the plugin files that a run's TOML names, and the settings in it."""
        from rlcore.config import toml
        from rlcore.config.layers import Layer

        values, functions = functions_of(toml.read_settings(path, flag), path)
        files = values.pop("plugin", [])
        if not (isinstance(files, list) and all(isinstance(file, str) for file in files)):
            raise ConfigError(f"{path}: plugin: found {files!r}, expected a list of paths.")
        paths = (*(path.parent / file for file in files), *(function.file for function in functions))
        program = self.with_files(paths, functions)
        return program, Layer(label=str(path), values=values)

    def run_file(self, path: Path, defaults: Mapping[str, Any]) -> "RunFile":
        """A run's TOML that may lack anything: only its names and the types of its values are checked.

        `defaults`: settings for where it says nothing. Its model and its data are not looked for. Raises
        `UserError`.
        """
        program, layer = self.read(path)
        return program._run_of(replace(layer, values={**defaults, **layer.values}), layer.values)

    def run_of(self, settings: Mapping[str, Any]) -> "RunFile":
        """The same for `settings` that stand in no file."""
        from rlcore.config.layers import Layer

        return self._run_of(Layer(label="rlcore plan", values=settings), settings)

    def _run_of(self, layer: "Layer", settings: Mapping[str, Any]) -> "RunFile":
        from rlcore.api.run_config import RunConfig
        from rlcore.config import layers
        from rlcore_cli.select import select, written_out

        registry, values = self.plugins.registry, layer.values
        if values.get("model") not in registry.names(Kind.MODEL):  # only a preset suggests settings
            values = {name: value for name, value in values.items() if name.partition(".")[0] != "model"}
        (plain,) = written_out(registry, replace(layer, values=values))
        # its data need not be here, so a URL stands for them, which is asked only by a run
        there = {name: "memory://rows.jsonl" for name in plain.values if DATA.fullmatch(name)}
        selection = select(
            registry, replace(plain, values={**plain.values, **there}), layers.Layer(label="", values={})
        )
        merged = selection.settings()
        for kind in (Kind.TRAINER, Kind.ENGINE):
            if kind in selection.entries:
                layers.build(selection.entries[kind].config, merged, kind)
        return RunFile(
            program=self,
            settings=settings,
            run=layers.build(RunConfig, merged),
            configs=tuple(config for _, config, _ in selection.configs()),
        )

    def require_files(self) -> None:
        """Whoever names a plugin file means it.

        Raises `PluginError` for one that is broken, or that lacks a function which is asked for.
        """
        paths = {file.path for file in self.plugins.files}
        for broken in self.plugins.broken:
            if broken.dist in paths:
                raise PluginError(ended(f"{broken.dist}: {broken.error}"))
        for function in self.functions:
            function.require(self.plugins)


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """`settings`: as the file has them, by dotted names. `run`: those of the run, with recipe and defaults.

    `configs`: of every part that the file, the recipe or a default chooses.
    """

    program: Program
    settings: Mapping[str, Any]
    run: "RunConfig"
    configs: "tuple[type[Config], ...]"


def _command(found: Any) -> click.Command:
    """The command that a hook yielded. Raises `PluginError` where it is none."""
    if not isinstance(found, Component | click.Command):
        raise PluginError(f"found {found!r}, expected a Component, or a click.Command with a name")
    if not isinstance(found.name, str) or not COMMAND.fullmatch(found.name):
        raise PluginError(f"command {found.name!r}: expected a name of lower-case letters, digits, _ and -")
    if isinstance(found, click.Command):
        return found
    if not isinstance(found.factory, str) or not FACTORY.fullmatch(found.factory):
        expected = 'expected a text "package.module:attribute"'
        raise PluginError(f"command {found.name!r}: factory {found.factory!r}, {expected}")
    if found != Component(name=found.name, factory=found.factory, summary=found.summary):
        raise PluginError(
            f"command {found.name!r}: expected a Component with name, factory and summary alone"
        )
    return LazyCommand(found)


def require(command: click.Command, plugin: PluginInfo) -> None:
    """Raises `PluginError` where the factory of `command` is not where its record says."""
    if isinstance(command, LazyCommand):
        check_factory(command.factory, str(command.name), plugin)


def help_of(command: click.Command) -> str:
    """The first paragraph of a command's help, whole, where click cuts it after some words."""
    return " ".join((command.short_help or (command.help or "").split("\n\n")[0]).split())


def start(switches: Switches, fixed: Mapping[str, ModuleType], functions: Sequence[Function] = ()) -> Program:
    """Load the plugins. Those that are slow are named on stderr."""
    plugins = load(switches, keep=fixed, warn=lambda sentence: click.echo(f"warning: {sentence}", err=True))
    return Program(switches, fixed, plugins, functions)


def split(args: Sequence[str]) -> tuple[Switches, list[Function], list[str]]:
    """The switches in `args` and in the environment, the functions in files, and the other arguments.

    `-p no:NAME`, `--plugin FILE` and `--reward FILE.py:FUNCTION` decide which commands and flags exist, so
    they are read first, wherever they stand before a `--`.
    """
    switches, rest, queue = Switches.from_environment(), [], list(args)
    off, files, functions = [], [], []
    while queue:
        argument = queue.pop(0)
        successor = queue[0] if queue else None
        if argument == "--":
            rest += [argument, *queue]
            break
        if argument == "-p" and successor is not None and successor.startswith(OFF):
            off.append(queue.pop(0).removeprefix(OFF))
        elif argument.startswith(f"-p{OFF}"):
            off.append(argument.removeprefix(f"-p{OFF}"))
        elif argument == "--plugin" and successor is not None:
            files.append(Path(queue.pop(0)))
        elif argument.startswith("--plugin="):
            files.append(Path(argument.removeprefix("--plugin=")))
        elif pair := _function(rest[-1] if rest else "", argument):
            function, value = pair
            files += [] if function.file in files else [function.file]
            functions.append(function)
            rest.append(value)
        else:
            rest.append(argument)
    return replace(switches, off=tuple(off), files=tuple(files)), functions, rest


def _function(before: str, argument: str) -> tuple[Function, str] | None:
    """What is FILE.py:FUNCTION, and the argument with the function's name alone.

    Raises `PluginError` for a file without a function.
    """
    option, equals, value = argument.partition("=")
    if not (equals and _takes_function(option)):
        option, equals, value = before, "", argument
    if not _takes_function(option):
        return None
    if value.endswith(".py"):
        raise PluginError(f"{option} {value}: found a file alone, expected FILE.py:FUNCTION.")
    match = FUNCTION.fullmatch(value)
    if match is None and ".py:" in value:
        raise PluginError(f"{option}: found {value!r}, expected FILE.py:FUNCTION, once for each function.")
    if match is None:
        return None
    return _function_of(match, option.removeprefix("--"), option, Path()), (
        f"{option}={match['name']}" if equals else match["name"]
    )


def _takes_function(option: str) -> bool:
    return option.startswith("--") and OF_FUNCTIONS.fullmatch(option.removeprefix("--")) is not None


def _function_of(match: re.Match[str], setting: str, at: str, folder: Path) -> Function:
    """The function of a match of `FUNCTION`, whose file is relative to `folder`."""
    name = match["name"].partition("=")[0]
    return Function(kind=Kind(setting.split(".")[-1]), at=at, file=folder / match["file"], name=name)


def functions_of(settings: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], list[Function]]:
    """`settings` of the file at `path` with names alone in place of FILE.py:FUNCTION, and the functions."""
    functions: list[Function] = []

    def name(setting: str, value: Any) -> Any:
        if isinstance(value, list):
            return [name(setting, item) for item in value]
        match = FUNCTION.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return value
        functions.append(_function_of(match, setting, f"{path}: {setting}:", path.parent))
        return match["name"]

    names = {
        setting: name(setting, value) if OF_FUNCTIONS.fullmatch(setting) else value
        for setting, value in settings.items()
    }
    return names, functions


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
