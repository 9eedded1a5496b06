"""What NAME means to `rlcore plugins show` and `check`: parts and commands, else a plugin or distribution."""

from collections.abc import Iterator
from dataclasses import dataclass

import click

from rlcore.api.errors import PluginError, did_you_mean
from rlcore.api.records import RewardAdapter
from rlcore.plugins.registry import Entry, PluginInfo
from rlcore_cli.program import Program

ADAPTER = "reward_adapter"
"""The kind of an adapter, which has no name but that of its plugin."""


@dataclass(frozen=True)
class Offer:
    """What a plugin offers by one name: a part or recipe (`entry`), a command, or an adapter."""

    provider: PluginInfo
    entry: Entry | None = None
    command: click.Command | None = None
    adapter: RewardAdapter | None = None

    @property
    def kind(self) -> str:
        """A `rlcore.Kind`, "command", or `ADAPTER`."""
        if self.entry:
            return self.entry.kind.value
        return ADAPTER if self.adapter else "command"

    @property
    def name(self) -> str:
        """The name by which a user chooses it. An adapter has that of its plugin."""
        if self.entry:
            return self.entry.record.name
        return str(self.command.name) if self.command else self.provider.name


def offers(program: Program) -> Iterator[Offer]:
    """Everything that the plugins offer, commands last."""
    yield from (Offer(entry.provider, entry=entry) for entry in program.plugins.registry.entries())
    yield from (Offer(info, command=command) for info, command in program.commands)


def offers_called(program: Program, name: str, command: str, *, adapters: bool = False) -> list[Offer]:
    """The parts and commands called `name`; where there are none, all that the plugin of that name offers.

    `command`: the command, for the error. `adapters`: find them too. Raises `PluginError` where nothing is
    called so: it says what is spelled alike, and which plugins failed to load.
    """
    every = list(offers(program))
    if adapters:
        every += [Offer(adapter.provider, adapter=adapter.record) for adapter in program.plugins.adapters]
    matches = [offer for offer in every if offer.name == name]
    matches = matches or [offer for offer in every if _is_called(offer.provider, name)]
    note = program.plugins.registry.broken_note()
    if not matches and any(_is_called(info, name) for info in program.plugins.infos):
        adapts = any(_is_called(adapter.provider, name) for adapter in program.plugins.adapters)
        instead = ": it makes rewards of functions (--reward FILE.py:FUNCTION)" if adapts else ""
        raise PluginError(f"{command}: the plugin {name!r} offers no part and no command{instead}.{note}")
    if not matches:
        names = {offer.name for offer in every} | {info.name for info in program.plugins.infos}
        hint = f" Load a file by --plugin {name}." if name.endswith(".py") else did_you_mean(name, names)
        raise PluginError(f"{command}: nothing is called {name!r}.{hint}{note}")
    return matches


def _is_called(plugin: PluginInfo, name: str) -> bool:
    return name in (plugin.name, plugin.dist)
