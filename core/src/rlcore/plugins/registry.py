"""Names → records. A name is unique in its kind; a clash names both providers."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from rlcore.api.errors import PluginError, RlcoreError, described, did_you_mean, one_line
from rlcore.api.factory import load
from rlcore.api.records import (
    CHOICE,
    LIST_KINDS,
    NAME,
    Algorithm,
    Component,
    ForeignSetting,
    Kind,
    ModelFamily,
    Record,
    RewardAdapter,
    Source,
)
from rlcore.plugins.setting_names import NUMBERS, SETTINGS

if TYPE_CHECKING:
    from rlcore.api.config import Config


@dataclass(frozen=True)
class KindRules:
    """What holds for one kind.

    `hook`: the registration hook that yields its `record`s. `config`: the base class of a part's config, in
    `rlcore.api.part_config`, which is imported when a part is chosen; empty: `rlcore.Config`.
    `in_recipe`: a recipe may name a part. `has_default`: a part may be chosen where the user chooses none.
    """

    hook: str
    record: type[Record] = Component
    config: str = ""
    in_recipe: bool = False
    has_default: bool = False


RULES: Mapping[Kind, KindRules] = {
    Kind.ALGORITHM: KindRules("rlcore_algorithms", Algorithm),
    Kind.ADVANTAGE: KindRules("rlcore_advantages", config="AdvantageConfig", in_recipe=True),
    Kind.LOSS: KindRules("rlcore_losses", config="LossConfig", in_recipe=True),
    Kind.VALUE_LOSS: KindRules("rlcore_value_losses", config="ValueLossConfig", in_recipe=True),
    Kind.CORRECTION: KindRules("rlcore_corrections", config="CorrectionConfig", in_recipe=True),
    Kind.GENERATOR: KindRules("rlcore_generators", in_recipe=True, has_default=True),
    # A default reward counts only for tasks (`--task`).
    Kind.REWARD: KindRules("rlcore_rewards", config="RewardConfig", in_recipe=True, has_default=True),
    Kind.FILTER: KindRules("rlcore_filters", config="FilterConfig", in_recipe=True),
    Kind.MODEL: KindRules("rlcore_models", ModelFamily),
    Kind.ENGINE: KindRules("rlcore_engines", config="EngineConfig", in_recipe=True, has_default=True),
    Kind.TRAINER: KindRules("rlcore_trainers", config="TrainerConfig", in_recipe=True, has_default=True),
    Kind.CLUSTER: KindRules("rlcore_clusters", config="ClusterConfig", has_default=True),
    Kind.SOURCE: KindRules("rlcore_sources", Source, has_default=True),
    Kind.PRODUCER: KindRules("rlcore_producers", config="ProducerConfig", in_recipe=True, has_default=True),
    Kind.MODEL_HOOK: KindRules("rlcore_model_hooks"),
    Kind.TRACKER: KindRules("rlcore_trackers"),
    Kind.CALLBACK: KindRules("rlcore_callbacks"),
}

PART_KINDS = tuple(kind for kind, rules in RULES.items() if rules.in_recipe)
"""Kinds of which a recipe may name a part."""

RUN_KINDS = (Kind.CLUSTER, Kind.MODEL_HOOK, Kind.TRACKER, Kind.CALLBACK)
"""Kinds whose parts have nothing to do with the recipe."""

REQUIRED_LISTS = (Kind.REWARD,)
"""The kinds of `LIST_KINDS` of which a run on rollouts needs at least one part."""

OPTIONAL_KINDS = (Kind.VALUE_LOSS, Kind.PRODUCER)
"""Kinds that may be chosen as none. For a producer, none means the default that suits the run."""

PASSING_KINDS = (Kind.ENGINE, Kind.TRAINER)
"""Kinds whose parts may hand on a table of fields unread (`rlcore.PassingConfig`)."""

_RECIPE = re.compile(r"[a-z][a-z0-9_+-]*")
FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
"""The form of a factory, "package.module:attribute"."""
_SOURCE = "a source is either a task, or has a config derived from rlcore.DataConfig"

FILE_VERSION = "sha256:"
"""How the version of a plugin file begins."""


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """The identity of a plugin. `origin`: the module of its entry point, or the path of its file.

    `is_kept`: no switch leaves it out.
    """

    name: str
    dist: str
    version: str
    origin: str
    is_kept: bool = False

    def __str__(self) -> str:
        return f"{self.dist} {self.version}"

    @property
    def is_file(self) -> bool:
        """Whether it is a plugin file."""
        return is_file(self.version)


def is_file(version: str) -> bool:
    """Whether the version is that of a plugin file."""
    return version.startswith(FILE_VERSION)


@dataclass(frozen=True, kw_only=True)
class Broken(PluginInfo):
    """A plugin that could not be loaded, and why."""

    error: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A record and the plugin that yielded it.

    `adapted_by`: of a function in a file, the plugins whose adapter is for it. With several, nothing chooses
    between them.
    """

    kind: Kind
    record: Record
    provider: PluginInfo
    adapted_by: tuple[PluginInfo, ...] = ()

    @property
    def component(self) -> Component:
        """The record, which is of any kind except a recipe."""
        assert isinstance(self.record, Component)
        return self.record

    @property
    def recipe(self) -> Algorithm:
        """The record of a recipe."""
        assert isinstance(self.record, Algorithm)
        return self.record

    @cached_property
    def config(self) -> "type[Config]":
        """The class of its settings: the base of its kind for a part that names none, or `rlcore.Config`.

        Raises `PluginError`, which names the part and its plugin, where it is given as a text, and cannot be
        imported or does not fit.
        """
        record, base = self.component, _base(self.kind)
        config: Any = record.config or base
        if isinstance(config, str):
            whose = f"{self.kind} {record.name!r} of {self.provider}"
            try:
                with redirect_stdout(sys.stderr):  # stdout is the answer, of --json for example
                    config = load(config, record.name)
            except RlcoreError as error:
                raise PluginError(f"{whose}: {one_line(error)}.") from error
            if fault := _config_fault(self.kind, record, config):
                raise PluginError(f"{whose}: {fault}.")
        return base if issubclass(base, config) else cast("type[Config]", config)

    @property
    def is_data_source(self) -> bool:
        """Whether it is a source behind `--data`."""
        return isinstance(self.record, Source) and not self.record.task


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter and the plugin that yielded it."""

    record: RewardAdapter
    provider: PluginInfo

    @property
    def entry(self) -> Entry:
        """What it makes of any function: a reward by the name of its factory."""
        factory, config = self.record.factory_of, self.record.config
        reward = Component(name=factory, factory=factory, summary="", config=config)
        return Entry(kind=Kind.REWARD, record=reward, provider=self.provider)


def clash_sentence(what: str, *providers: PluginInfo, of_file: str = "rename that of the file") -> str:
    """Which plugins offer `what`, and which of them can be left out how."""
    names = " and ".join(f"{one.name} ({one})" for one in providers)
    ways = [of_file] if any(one.is_file for one in providers) else []
    off = [f"-p no:{one.name}" for one in providers if not one.is_kept and not one.is_file]
    ways += [f"switch one off with {' or '.join(off)}"] if off else []
    return f"{what} is offered by two plugins, {names}; {', or '.join(ways)}."


def check(kind: Kind, record: object) -> str | None:
    """The fault of a record that a hook of `kind` yielded; None: it has none."""
    expected = RULES[kind].record
    if type(record) is not expected:
        return f"the {kind} hook yielded {described(record)}, expected a record of type {expected.__name__}"
    assert isinstance(record, Component | Algorithm)
    # Names stand in flags, TOML tables and metrics; those of recipes only as the value of --algo.
    signs = " (in a recipe + and - too)" if isinstance(record, Algorithm) else ""
    pattern = _RECIPE if isinstance(record, Algorithm) else NAME
    if not pattern.fullmatch(str(record.name)) or record.name == CHOICE:
        return f"{kind} {record.name!r}: expected a name of lower-case letters, digits and underscores{signs}"
    fault = _check_recipe(record) if isinstance(record, Algorithm) else _check_component(kind, record)
    return f"{kind} {record.name!r}: {fault}" if fault else None


def check_adapter(adapter: Adapter) -> str | None:
    """The fault of what the hook of adapters yielded; None: it has none."""
    record: object = adapter.record
    if type(record) is not RewardAdapter:
        return f"rlcore_reward_adapters yielded {described(record)}, expected a RewardAdapter"
    named: object = record.parameters
    if not (
        isinstance(named, tuple)
        and named
        and all(isinstance(one, frozenset) and one and all(isinstance(n, str) for n in one) for one in named)
    ):
        return f"an adapter's parameters {named!r}, expected a tuple of frozensets of names"
    fault = _check_component(Kind.REWARD, adapter.entry.component)
    return f"an adapter's {fault}" if fault else None


def _check_recipe(record: Algorithm) -> str | None:
    for kind in [*record.parts, *record.tables]:
        if kind not in PART_KINDS:
            return f"found a part {kind!r}, expected one of {', '.join(PART_KINDS)}"
    for key in record.settings:
        if key not in SETTINGS:
            return f"settings: {key!r} is no setting of a run.{did_you_mean(key, SETTINGS)}"
    for key in record.scales:
        if key not in NUMBERS:
            return f"scales: {key!r} is no setting of a run that is a number"
    for kind, names in record.parts.items():
        if isinstance(names, str) == (kind in LIST_KINDS):
            return f"part {kind!r}: found {names!r}, expected {'a list' if kind in LIST_KINDS else 'a name'}"
    return None


def _check_component(kind: Kind, record: Component) -> str | None:
    optional: list[Any] = [record.adapter]
    if isinstance(record, ModelFamily):
        optional += [record.preset, record.preset_config, record.facts, record.sizes, record.adopt]
    for factory in [record.factory, *filter(None, optional)]:
        if not isinstance(factory, str) or not FACTORY.fullmatch(factory):
            return f'factory {factory!r}, expected a text "package.module:attribute"'
    if record.default and not RULES[kind].has_default:
        return f"default: no {kind} is chosen unasked"
    if isinstance(record.config, str):
        if record.config and not FACTORY.fullmatch(record.config):
            return f'config {record.config!r}, expected a class, or a text "package.module:Class"'
        if not record.config and isinstance(record, Source) and not record.task:
            return _SOURCE
    elif fault := _config_fault(kind, record, record.config):
        return fault
    parts = PART_KINDS if isinstance(record, ModelFamily | Source) else ()
    names = {*SETTINGS, *(kind.value for kind in parts)}
    for key in record.suggests:
        if key not in names:
            return f"suggests {key!r}, which is no setting of a run.{did_you_mean(key, names)}"
    return None


def _base(kind: Kind) -> "type[Config]":
    """The base class of the configs of `kind`."""
    from rlcore.api import part_config

    return cast("type[Config]", getattr(part_config, RULES[kind].config or "Config"))


def _config_fault(kind: Kind, record: Component, config: object) -> str | None:
    """Why `config` is no class of settings for `record`; None: it is one."""
    from rlcore.api.config import Config
    from rlcore.api.part_config import DataConfig

    base = _base(kind)
    if not (isinstance(config, type) and issubclass(config, base)) and config is not Config:
        return f"config {config!r}, expected a class derived from {base.__module__}.{base.__name__}"
    assert issubclass(config, Config)
    if isinstance(record, Source) and record.task == issubclass(config, DataConfig):
        return _SOURCE
    if CHOICE in config.model_fields:
        return f"its config has a field {CHOICE!r}, which a run.toml uses for the choice itself"
    return None


class Registry:
    """Every record by kind and name. `foreign`: the settings of other frameworks."""

    def __init__(
        self,
        entries: Iterable[Entry],
        broken: Iterable[Broken] = (),
        foreign: Callable[[], Iterable[ForeignSetting]] = tuple,
    ) -> None:
        """Raises `PluginError` where a plugin file offers a name that another plugin offers too."""
        self.broken = tuple(broken)
        self.foreign = foreign
        offers: dict[tuple[Kind, str], list[Entry]] = {}
        for entry in entries:
            offers.setdefault((entry.kind, entry.record.name), []).append(entry)
        self._entries: dict[tuple[Kind, str], Entry] = {}
        self._clashes: dict[tuple[Kind, str], str] = {}
        self._default_clashes: dict[Kind, str] = {}
        for (kind, name), offered in offers.items():
            if len(offered) == 1:
                self._entries[kind, name] = offered[0]
                continue
            # Neither is used: which was installed first must not decide what a run does.
            providers = [entry.provider for entry in offered[:2]]
            clash = self._clashes[kind, name] = clash_sentence(f"{kind} {name!r}", *providers)
            if any(entry.provider.is_file for entry in offered):
                raise PluginError(clash)  # whoever names a file means it
            if any(getattr(entry.record, "default", False) for entry in offered):
                self._default_clashes[kind] = clash

    @property
    def clashes(self) -> tuple[str, ...]:
        """A sentence for each name that several plugins offer. None of them is used."""
        return tuple(self._clashes.values())

    def entries(self, kind: Kind | None = None) -> list[Entry]:
        """The entries of one kind, or of all, sorted by kind and name."""
        entries = [entry for (of, _), entry in self._entries.items() if kind in (None, of)]
        return sorted(entries, key=lambda entry: (list(Kind).index(entry.kind), entry.record.name))

    def configs(self, kind: Kind) -> "Iterator[tuple[Entry, type[Config]]]":
        """The parts of one kind, each with the class of its settings.

        Without those whose class cannot be imported, of which `find` tells whoever chooses them.
        """
        for entry in self.entries(kind):
            with suppress(PluginError):
                yield entry, entry.config

    def names(self, kind: Kind) -> list[str]:
        """The names of one kind, sorted."""
        return sorted(name for of, name in self._entries if of is kind)

    def default(self, kind: Kind) -> Entry | None:
        """The part that is chosen if the user chooses none.

        None: no plugin offers a default, or several do. Raises `PluginError` where two plugins offer the name
        of one: without it, a run would lack a part that nobody switched off.
        """
        if clash := self.default_clash(kind):
            raise PluginError(clash)
        defaults = [entry for entry in self.entries(kind) if entry.component.default]
        return defaults[0] if len(defaults) == 1 else None

    def default_clash(self, kind: Kind) -> str | None:
        """A sentence where two plugins offer the name of a default part of `kind`; None: they do not."""
        return f"The {self._default_clashes[kind]}" if kind in self._default_clashes else None

    def data_source(self, flag: str) -> Entry:
        """The source behind `--data`. `flag`: as for `find`.

        Raises `PluginError` where no plugin offers one, or two do.
        """
        sources = [entry for entry in self.entries(Kind.SOURCE) if entry.is_data_source]
        if not sources:
            raise PluginError(f"{flag}: no plugin offers a source that reads data.{self.broken_note()}")
        if len(sources) > 1:
            providers = [entry.provider for entry in sources[:2]]
            raise PluginError(f"{flag}: {clash_sentence('a source that reads data', *providers)}")
        return self.find(Kind.SOURCE, sources[0].record.name, flag)

    def find(self, kind: Kind, name: str, flag: str) -> Entry:
        """The entry of `name`. `flag`: the flag or the key of a file, for the error.

        Raises `PluginError`: which plugins offer it, where there are several, or else what was asked, what
        exists, and which broken plugins may contain it. Also for a function that two adapters are for.
        """
        if (entry := self._entries.get((kind, name))) is not None:
            if len(entry.adapted_by) > 1:
                what = f"what makes a {kind} of the function {name!r}"
                both = clash_sentence(what, *entry.adapted_by[:2], of_file="leave the file out")
                raise PluginError(f"{flag}: {both}")
            _ = kind is Kind.ALGORITHM or entry.config  # raises where it cannot be imported
            return entry
        if (kind, name) in self._clashes:
            raise PluginError(f"{flag}: {self._clashes[kind, name]}")
        names = self.names(kind)
        raise PluginError(
            f"{flag}: found {name!r}, expected {self.offer(kind)}."
            f"{did_you_mean(name, names)}{self.broken_note()}"
        )

    def offer(self, kind: Kind) -> str:
        """`one of a, b`, for errors. The parts of plugin files come first: they are most likely meant."""
        entries = [entry for entry in self.entries(kind) if not entry.is_data_source]
        if not entries:
            return f"one that a plugin offers, but no plugin offers any {kind}"
        names = sorted((not entry.provider.is_file, entry.record.name) for entry in entries)
        function = " or FILE.py:FUNCTION" if kind is Kind.REWARD else ""
        return f"one of {', '.join(name for _, name in names)}{function}"

    def broken_note(self) -> str:
        """` It may be in a plugin that failed to load: …`, and the names that clash, or the empty string."""
        clashes = "".join(f" The {clash}" for clash in self.clashes)
        if not self.broken:
            return clashes
        broken = "; ".join(f"{plugin} ({plugin.error})" for plugin in self.broken)
        return f" It may be in a plugin that failed to load: {broken}.{clashes}"
