"""Finds plugins, registers them, and keeps what broke.

Plugins come from the entry-point group `rlcore` (each value a module with `hookimpl` functions) and from
files. A plugin that fails is left out and remembered; it is fatal only where it is selected, or under
`RLCORE_STRICT_PLUGINS=1`.
"""

import inspect
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

import rlcore
from rlcore.api import hookspecs
from rlcore.api.errors import PluginError, described, did_you_mean, ended, one_line
from rlcore.api.plugin_file import PluginFile, import_plugin_file
from rlcore.api.records import NAME, Component, ForeignSetting, Kind
from rlcore.plugins import files
from rlcore.plugins.installed import UNKNOWN, Installed, installed
from rlcore.plugins.registry import (
    FILE_VERSION,
    RULES,
    Adapter,
    Broken,
    Entry,
    PluginInfo,
    Registry,
    check,
    check_adapter,
)
from rlcore_machine import when_slow

_log = logging.getLogger(__name__)

ONLY = "RLCORE_PLUGINS"
STRICT = "RLCORE_STRICT_PLUGINS"
PREFIX = "rlcore_"
SLOW_S = 1.5
"""Seconds of an import after which rlcore names the plugin: torch takes more, all bundled ones a fifth."""
GENERATES = ["ctx", "sample"]
"""The parameters of a generator: `async def generate(ctx, sample)`."""


@dataclass(frozen=True, kw_only=True)
class Switches:
    """What to load. `only`: names of plugins (None: all); `off`: names to leave out; `files`: `--plugin`.

    A name is that of the entry point (`mine`) or of the distribution (`rlcore-mine`).
    """

    only: tuple[str, ...] | None = None
    off: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    strict: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Switches":
        """`RLCORE_PLUGINS=a,b` (empty: none but those that are kept) and `RLCORE_STRICT_PLUGINS=1`."""
        only = environ.get(ONLY)
        names = None if only is None else tuple(name.strip() for name in only.split(",") if name.strip())
        return cls(only=names, strict=environ.get(STRICT, "") not in ("", "0"))


@dataclass(kw_only=True)
class Plugins:
    """The loaded plugins. `broken`: those that failed. `files`: those given as a file.

    `adapters`: what makes rewards of plain functions.
    """

    manager: pluggy.PluginManager
    files: tuple[PluginFile, ...]
    infos: list[PluginInfo] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list, repr=False)
    adapters: list[Adapter] = field(default_factory=list)

    @cached_property
    def registry(self) -> Registry:
        """Raises `PluginError` where a plugin file offers a name that another plugin offers too."""
        return Registry(self.entries, self.broken, self._foreign)

    def _foreign(self) -> Iterator[ForeignSetting]:
        """The settings of other frameworks that the plugins know."""
        for implementation in self.manager.hook.rlcore_foreign_settings.get_hookimpls():
            give: Any = implementation.function
            try:
                yield from list(give())
            except (Exception, SystemExit) as error:  # they are for a hint alone
                whose = next(info for info in self.infos if info.name == implementation.plugin_name)
                why = one_line(error)
                _log.warning("plugin %r of %s cannot give its foreign settings: %s", whose.name, whose, why)


def load(
    switches: Switches | None = None,
    *,
    keep: Mapping[str, ModuleType] | None = None,
    warn: Callable[[str], object] = _log.warning,
) -> Plugins:
    """Load the plugins of this process. `keep`: modules that are loaded whatever the switches say.

    `warn` gets a sentence about each plugin that takes long to import, while it does: from another thread.

    Raises `PluginError` for a switch that names no plugin, an unreadable file, or, when strict, the first
    broken plugin or the first name that two plugins offer.
    """
    switches = switches or Switches.from_environment()
    kept = keep or {}
    found = installed()
    points = [one for one in found if not _is_kept(one, kept)]
    metadata = {one.name: one for one in found if _is_kept(one, kept)}
    _check_switches(switches, points, kept)
    manager = _Manager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    loader = _Loader(manager=manager, files=files.read_all(switches.files), warn=warn)
    for name, module in kept.items():
        whose = metadata.get(name)
        info = PluginInfo(
            name=name,
            dist=whose.dist if whose else UNKNOWN,
            version=whose.version if whose else rlcore.__version__,
            origin=module.__name__,
            is_kept=True,
        )
        loader.add(info, partial(import_module, module.__name__))
    for one in points:
        is_on = switches.only is None or not one.names.isdisjoint(switches.only)
        if is_on and one.names.isdisjoint(switches.off):
            _add_installed(loader, one, points)
    for file in loader.files:
        version = f"{FILE_VERSION}{file.sha256}"
        info = PluginInfo(name=file.name, dist=file.path, version=version, origin=file.path)
        loader.add(info, partial(import_plugin_file, file))
    loader.add_functions()
    if switches.strict and loader.broken:
        first = loader.broken[0]
        raise PluginError(ended(f"plugin {first.name!r} of {first} is broken: {first.error}"))
    for clash in loader.registry.clashes if switches.strict else ():
        raise PluginError(clash)
    for entry in (*loader.entries, *(one.entry for one in loader.adapters)) if switches.strict else ():
        _ = entry.kind is Kind.ALGORITHM or entry.config  # raises where it cannot be imported
    return loader


class _Manager(pluggy.PluginManager):
    """Looks for hooks among functions alone: to look at every name of a module closely takes time."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        is_function = inspect.isfunction(vars(plugin).get(name))
        return super().parse_hookimpl_opts(plugin, name) if is_function else None


@dataclass(kw_only=True)
class _Loader(Plugins):
    """The plugins while they are loaded."""

    warn: Callable[[str], object]

    def add(self, info: PluginInfo, import_it: Callable[[], ModuleType]) -> None:
        """Register one plugin and take its records, or remember why not."""
        try:
            # stdout is the answer, of --json for example; an import that never ends is told of while it lasts
            with when_slow(SLOW_S, lambda: self.warn(_slow(info))), redirect_stdout(sys.stderr):
                module = import_it()
                _check_hooks(self.manager, module)
                self.manager.register(module, name=info.name)
                entries, adapters = list(self._records(info, module)), list(self._adapters(info, module))
            self.entries += entries
            self.adapters += adapters
        except (Exception, SystemExit) as error:  # a script that ends itself must not end rlcore
            self.reject(info, f"{one_line(error)}{_import_advice(info, error)}")
            if self.manager.has_plugin(info.name):
                self.manager.unregister(name=info.name)
        else:
            self.infos.append(info)

    def reject(self, info: PluginInfo, error: str) -> None:
        """Remember a plugin as broken."""
        self.broken.append(Broken(**vars(info), error=error))

    def _records(self, info: PluginInfo, module: ModuleType) -> Iterator[Entry]:
        for kind, rules in RULES.items():
            for record in self._yielded(rules.hook, module):
                if complaint := check(kind, record):
                    raise PluginError(complaint)
                yield Entry(kind=kind, record=record, provider=info)

    def _adapters(self, info: PluginInfo, module: ModuleType) -> Iterator[Adapter]:
        for record in self._yielded("rlcore_reward_adapters", module):
            if complaint := check_adapter(adapter := Adapter(record=record, provider=info)):
                raise PluginError(complaint)
            yield adapter

    def _yielded(self, hook: str, module: ModuleType) -> Iterator[Any]:
        # Its own implementations alone: a call through the hook would ask every plugin again.
        for implementation in getattr(self.manager.hook, hook).get_hookimpls():
            if implementation.plugin is module:
                records = implementation.function()
                if not isinstance(records, Iterable):
                    found = described(records)
                    raise PluginError(f"hook {hook!r} gave {found}, expected records: yield each one")
                yield from records

    def add_functions(self) -> None:
        """Take the functions of the files without hooks, after all files: each may offer adapters."""
        for info in self.infos:
            module: Any = self.manager.get_plugin(info.name)
            if info.is_file and not self.manager.get_hookcallers(module):
                self.entries += _functions(info, module, self.adapters)


def _slow(info: PluginInfo) -> str:
    said = f"plugin {info.name!r} of {info} takes more than {SLOW_S:g} s to import"
    if info.is_file:
        return f"{said}; move slow imports into the functions that need them."
    return f"{said}; every command waits for it, and -p no:{info.name} leaves it out."


def _import_advice(info: PluginInfo, error: BaseException) -> str:
    """How a file is used whose imports need its folder or its package: rlcore reads its content alone."""
    if not (info.is_file and isinstance(error, ImportError)):
        return ""
    if error.name:
        beside = Path(info.origin).with_name(error.name.partition(".")[0])
        if beside.is_dir() or beside.with_suffix(".py").is_file():
            return f"; that lies beside the file: set PYTHONPATH={beside.parent}"
    elif "relative import" in str(error):
        return "; it is part of a package: import its function in a file of your own, and list it in __all__"
    return ""


def _check_hooks(manager: pluggy.PluginManager, module: ModuleType) -> None:
    """Raise for a misspelt or unmarked hook, and for a default argument, which releases of pluggy treat
    differently.
    """
    hooks = [name for name in vars(hookspecs) if name.startswith(PREFIX)]
    for name in dir(module):
        options = manager.parse_hookimpl_opts(module, name)
        if options is None:
            if name in hooks and inspect.isfunction(vars(module)[name]):
                raise PluginError(f"hook {name!r} is not marked: write @hookimpl above it")
            continue
        hook = options.get("specname") or name
        if hook not in hooks:
            raise PluginError(f"hook {hook!r} does not exist.{did_you_mean(hook, hooks)}")
        for argument in inspect.signature(getattr(module, name)).parameters.values():
            if argument.default is not argument.empty:
                raise PluginError(f"hook {name!r} gives its argument {argument.name!r} a default")


def _add_installed(loader: _Loader, one: Installed, others: Iterable[Installed]) -> None:
    name = one.name
    info = PluginInfo(name=name, dist=one.dist, version=one.version, origin=one.value)
    rivals = sorted({f"{rival.dist} {rival.version}" for rival in others if rival.name == name})
    if name in (core.name for core in loader.infos):
        loader.reject(info, f"the name {name!r} is rlcore's own; choose another")
    elif len(rivals) > 1:
        loader.reject(info, f"the name {name!r} is taken by {' and '.join(rivals)}; uninstall one")
    elif one.unmet is not None:
        loader.reject(
            info,
            f"it asks for rlcore{one.unmet}, and rlcore {rlcore.__version__} is installed; "
            f"install a release of {one.dist} for this one",
        )
    else:
        loader.add(info, partial(import_module, one.value))


def _check_switches(switches: Switches, points: Iterable[Installed], kept: Collection[str]) -> None:
    every = {name for one in points for name in one.names}
    for switch, names in ((f"{ONLY}=", switches.only or ()), ("-p no:", switches.off)):
        for name in names:
            if name in kept and names is switches.off:
                raise PluginError(f"{switch}{name}: it cannot be switched off.")
            if name not in every and name not in kept:
                raise PluginError(f"{switch}{name}: no such plugin.{did_you_mean(name, every)}")


def _is_kept(one: Installed, kept: Mapping[str, ModuleType]) -> bool:
    return one.name in kept and one.value == kept[one.name].__name__


def _functions(info: PluginInfo, module: ModuleType, adapters: Iterable[Adapter]) -> Iterator[Entry]:
    """The functions with the parameters of a generator or of a reward. Other functions are helpers.

    `__all__` names others, which the file imports or makes by a call.
    """
    named = getattr(module, "__all__", ())
    for name, function in vars(module).items():
        is_own = inspect.isfunction(function) and function.__module__ == module.__name__
        if not is_own and not (name in named and callable(function) and not inspect.isclass(function)):
            continue
        if not NAME.fullmatch(name):
            continue
        parameters = inspect.signature(function).parameters
        generates = inspect.iscoroutinefunction(function) and list(parameters) == GENERATES
        fitting = [] if generates else _adapters_for(parameters, adapters)
        if not (generates or fitting):
            continue
        component = Component(
            name=name,
            factory=f"{module.__name__}:{name}",
            summary=(inspect.getdoc(function) or "a function").splitlines()[0],
        )
        if fitting:
            adapter = fitting[0].record
            component = replace(component, adapter=adapter.factory_of, config=adapter.config)
        yield Entry(
            kind=Kind.GENERATOR if generates else Kind.REWARD,
            record=component,
            provider=info,
            adapted_by=tuple({one.provider: None for one in fitting}),
        )


def _adapters_for(parameters: Mapping[str, inspect.Parameter], adapters: Iterable[Adapter]) -> list[Adapter]:
    """Those that know most of a function with these parameters: which was installed first decides nothing."""
    named = {name for name, one in parameters.items() if one.kind is not one.VAR_POSITIONAL}
    if "config" in named:
        return []
    sizes = [(max((len(n) for n in one.record.parameters if n <= named), default=0), one) for one in adapters]
    most = max((count for count, _ in sizes), default=0)
    return [one for count, one in sizes if count == most > 0]
