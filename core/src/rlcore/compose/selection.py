"""Which parts a run is made of, before any of their settings is read.

A selection may be incomplete (`rlcore train --algo grpo --help`): it still knows the flags of what is chosen
so far.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch

from rlcore.api.columns import TrainsOn
from rlcore.api.config import Config, fields_of, flag_name, named_fields
from rlcore.api.errors import ConfigError, PluginError, did_you_mean
from rlcore.api.part_config import PassingConfig
from rlcore.api.records import LIST_KINDS, Kind
from rlcore.api.run_config import RunConfig
from rlcore.compose.engine_groups import ENGINE_GROUP
from rlcore.compose.evals import EVAL, EvalChoice, EvalConfig
from rlcore.compose.frozen import FROZEN
from rlcore.compose.lookup import strongest
from rlcore.compose.models import FoundModel, offer as offered_models
from rlcore.compose.roles import role_of
from rlcore.config import layers
from rlcore.config.layers import Layer, Setting
from rlcore.plugins.registry import (
    OPTIONAL_KINDS,
    PART_KINDS,
    PASSING_KINDS,
    REQUIRED_LISTS,
    RUN_KINDS,
    Entry,
    PluginInfo,
    Registry,
)

CHOICES: Mapping[str, str] = {
    "algo": "recipe: names parts, and has vetted defaults",
    "model": "model: a family (its tiny preset), a Hugging Face directory or a hub id",
    "task": "procedural task to train on",
    "data": "prompts: a .jsonl or .parquet file, or OWNER/NAME of the hub; of several, NAME=PATH:WEIGHT each",
    EVAL: "also evaluate on NAME=PATH, or NAME=TASK",
    "advantage": "advantage estimator",
    "loss": "loss",
    "value_loss": "loss of the value model",
    "correction": "weighs off-policy tokens",
    "generator": "rollout generator: NAME or FILE.py:FUNCTION",
    "reward": "reward: NAME or FILE.py:FUNCTION; with =WEIGHT in a sum of several",
    "filter": "keeps, changes or drops scored groups",
    "engine": "generation engine",
    "trainer": "trainer",
    "cluster": "where the processes of the run are",
    "producer": "how rollouts are made; none: as --max-staleness and the recipe say",
    "model_hook": "changes the policy in each train worker, such as to freeze parameters",
    "tracker": "where metrics and samples go, beside the run's folder",
    "callback": "may steer the run after each step",
}
"""The flags that choose a part, with their help."""

OTHER_NAMES: Mapping[str, str] = {
    "learning_rate": "lr",
    "batch_size": "prompts_per_step",
    "train_batch_size": "prompts_per_step",
    "n": "group_size",
    "max_new_tokens": "max_response_tokens",
}
"""What many call a setting of the run → its name here.

Parts name those of their own fields (`PassingConfig.synonyms`), and plugins those of a whole framework
(`rlcore_foreign_settings`).
"""

KINDS: Mapping[str, Kind] = {
    "algo": Kind.ALGORITHM,
    "model": Kind.MODEL,
    "task": Kind.SOURCE,
    **{kind.value: kind for kind in (*PART_KINDS, *RUN_KINDS)},
}
"""Flag → the kind whose names it takes."""

REPEATED = (*LIST_KINDS, EVAL, "data")
"""Choices that may be given several times."""

LENGTHS = ("steps", "epochs")
"""Two ways to say how long a run is; the stronger layer decides which one holds."""

ROLLOUT_KINDS = (Kind.ADVANTAGE, Kind.VALUE_LOSS, Kind.CORRECTION, Kind.REWARD, Kind.FILTER)
"""Kinds that have nothing to do where the data give the responses."""

SINGLE_KINDS = tuple(kind for kind in (*PART_KINDS, *RUN_KINDS) if kind not in LIST_KINDS)
"""Kinds of which a run takes exactly one part, or none."""


def table_owners(registry: Registry) -> Iterator[tuple[Entry, type[PassingConfig]]]:
    """The parts that have a table of fields that pass through, selected or not."""
    for kind in PASSING_KINDS:
        for entry, config in registry.configs(kind):
            if issubclass(config, PassingConfig) and config.table:
                yield entry, config


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What is chosen.

    `layers`: every layer of settings, weakest first. `entries`: the part of each kind that has one. `lists`:
    the parts of each kind that may have several, in order. `weights`: the weight of each reward. `evals`: the
    evaluations beside the held-out sets of the source. `clashes`: for kinds that lack their default part, a
    sentence that says which two plugins offer its name.
    """

    registry: Registry
    layers: tuple[Layer, ...]
    entries: Mapping[Kind, Entry]
    lists: Mapping[Kind, tuple[Entry, ...]]
    weights: Mapping[str, float]
    model: FoundModel | None
    evals: tuple[EvalChoice, ...] = ()
    clashes: Mapping[Kind, str] = field(default_factory=dict)

    @property
    def trains_on(self) -> TrainsOn:
        """Where the responses come from."""
        entry = self.entries.get(Kind.ALGORITHM)
        return entry.recipe.trains_on if entry else TrainsOn.ROLLOUTS

    def require_complete(self) -> None:
        """`ConfigError` where a part is still to be chosen, `PluginError` where its default clashes."""
        for clash in self.clashes.values():
            raise PluginError(clash)
        unneeded = () if self.trains_on is TrainsOn.ROLLOUTS else ROLLOUT_KINDS
        for key, kind in KINDS.items():
            free = kind in OPTIONAL_KINDS or (kind in LIST_KINDS and kind not in REQUIRED_LISTS)
            if free or kind in unneeded or kind in self.entries or self.lists.get(kind):
                continue
            offer = offered_models(self.registry) if kind is Kind.MODEL else self.registry.offer(kind)
            note = self.registry.broken_note()
            raise ConfigError(f"{flag_name(key)} is missing: nothing chooses it, expected {offer}.{note}")

    def chosen(self, key: str) -> str | None:
        """The present choice behind the flag `key`, for the help; None: there is none."""
        if key == EVAL:
            return " ".join(evaluation.name for evaluation in self.evals) or None
        if key in LIST_KINDS:
            return " ".join(self._names(KINDS[key])) or None
        source = self.entries.get(Kind.SOURCE)
        if key == "data" or (key == "task" and source and source.is_data_source):
            return None
        entry = self.entries.get(KINDS[key])
        return entry.record.name if entry else None

    def tables(self) -> Iterator[tuple[str, Entry]]:
        """Every selected part with the table that its settings stand in."""
        for kind in (Kind.MODEL, *SINGLE_KINDS, Kind.SOURCE):
            if kind in self.entries:
                yield kind.value, self.entries[kind]
        for kind, entries in self.lists.items():
            yield from ((f"{kind}.{entry.record.name}", entry) for entry in entries)
        for evaluation in self.evals:
            yield from evaluation.tables()

    def providers(self, *more: Entry) -> tuple[PluginInfo, ...]:
        """The plugins that provide the selected parts and `more`, sorted by name.

        Those too whose adapter makes one of them.
        """
        model = [self.model.entry] if self.model else []
        entries = [*self.entries.values(), *model, *(entry for _, entry in self.tables()), *more]
        # By name: a plugin that provides several parts counts once, and the order is the same everywhere.
        plugins = [plugin for entry in entries for plugin in (entry.provider, *entry.adapted_by)]
        providers = {plugin.name: plugin for plugin in plugins}
        return tuple(providers[name] for name in sorted(providers))

    def configs(self) -> Iterator[tuple[str, type[Config], str]]:
        """Everything beside the run that has settings: its table, its config class, its heading in the
        help.
        """
        for table, entry in self.tables():
            heading = table.replace(".", ": ") if "." in table else f"{table}: {entry.record.name}"
            yield table, entry.config, heading
        for evaluation in self.evals:
            yield evaluation.table, EvalConfig, f"{EVAL}: {evaluation.name}"

    def settings(self) -> dict[str, Setting]:
        """The merged settings. Raises `ConfigError` for a name that nothing reads."""
        names = set(self.known())
        for layer in self.layers:
            for name in layer.values:
                is_known = name in names or name in named_fields(RunConfig, name)
                if not is_known and not self.passes_through(name, layer):
                    raise ConfigError(self.unknown(name, layer))
        merged = layers.merge(self.layers)
        # A recipe's --steps must not contradict the user's --epochs: only the stronger one counts.
        length = strongest(self.layers, *LENGTHS)
        for name in LENGTHS:
            if length is not None and name != length[0]:
                merged.pop(name, None)
        # The source reads its own `path`; the user has said it by --data.
        for hidden, choice in self.chosen_otherwise().items():
            merged[hidden] = merged[choice]
        return merged

    def passing(self) -> Iterator[tuple[Entry, type[PassingConfig]]]:
        """Those of `table_owners` that are selected."""
        for entry, config in table_owners(self.registry):
            if entry == self.entries.get(entry.kind):
                yield entry, config

    def passes_through(self, name: str, layer: Layer) -> bool:
        """Whether `name` is a field that core hands on unread, such as one of the trainer's library.

        ConfigError where it belongs to a part that is not selected.
        """
        role, rest = role_of(name)
        table, dot, field = rest.partition(".")
        if not dot or "-" in field:  # a file spells every name with underscores
            return False
        if table in (FROZEN, ENGINE_GROUP) and not role:
            return True  # fields of servers, which the engine checks once all names are known
        # A role (`ROLE.TABLE.FIELD`) has fields of the trainer alone.
        owners = [
            owner
            for owner, config in table_owners(self.registry)
            if config.table == table and (not role or owner.kind is Kind.TRAINER)
        ]
        if any(owner == self.entries.get(owner.kind) for owner in owners):
            return True
        for owner in owners:
            kind, needed = owner.kind, f"--{owner.kind} {owner.record.name}"
            chosen = f"is {self.entries[kind].record.name!r}" if kind in self.entries else "is not chosen"
            raise ConfigError(f"{layer.at(name)} needs {needed}, but the {kind} {chosen}.")
        return False

    def chosen_otherwise(self) -> dict[str, str]:
        """Field without a flag → the choice that says it: the `path` of the source behind `--data`."""
        source = self.entries.get(Kind.SOURCE)
        choices = {"source.path": "data"} if source and source.is_data_source else {}
        for evaluation in self.evals:
            if evaluation.source.is_data_source:
                choices[f"{evaluation.table}.source.path"] = f"{evaluation.table}.data"
        return choices

    def known(self) -> list[str]:
        """Every name that something reads, without the fields that pass through."""
        names = [*fields_of(RunConfig), *CHOICES]
        for evaluation in self.evals:
            names += evaluation.choices()
        for table, config, _ in self.configs():
            names += [f"{table}.{key}" for key in config.model_fields]
        hidden = self.chosen_otherwise()
        return [name for name in names if name not in hidden]

    def unknown(self, name: str, layer: Layer, options: Iterable[str] = ()) -> str:
        """The sentence for a name that nothing reads. `options`, which are no settings, may be meant too."""
        if name in self.chosen_otherwise():
            return f"{layer.at(name)} is what {layer.at(self.chosen_otherwise()[name])} says; leave it out."
        names = self.known()
        if name in names:
            return f"--{name} is spelled {flag_name(name)}."
        owner = self._unselected_owner(name)
        if owner:
            return f"{layer.at(name)} {owner}"
        shown = str if layer.label else flag_name
        # A field of a library is typed as a flag, with dashes.
        underscored = name.replace("-", "_")
        is_field = underscored != name and self.passes_through(underscored, layer)
        meant = underscored if is_field else self._called_elsewhere(name, names)
        own = self._of_named(name, shown)
        note = "" if meant else self.foreign_note(name) or (own if name.count(".") > 1 else "")
        meant = meant or (None if note else self._dotted(name))
        table, _, last = name.rpartition(".")
        if table and not (meant or note) and last in names:
            place = " above the first [table]" if layer.label else ""
            hint = f" Did you mean {shown(last)!r}{place}?"
        elif meant:
            hint = f" Did you mean {shown(meant)!r}{self._difference(name, meant)}?"
        else:
            hint = (
                note
                or did_you_mean(shown(name), [*map(shown, names), *options])
                or self.foreign_note(name, fnmatch)
                or own
            )
        return f"{layer.at(name)} is unknown.{hint}{self.registry.broken_note()}"

    def _of_named(self, name: str, shown: Callable[[str], str]) -> str:
        """What tables of the user's own names have, if `name` is of one."""
        fields = named_fields(RunConfig, f"{name.partition('.')[0]}.name")
        names = ", ".join(shown(field).replace(".name.", ".NAME.") for field in fields)
        return names and f" Expected {names}; NAME has lower-case letters, digits and underscores alone."

    def _difference(self, name: str, setting: str) -> str:
        """In brackets, how the values of another framework's `name` differ from those of `setting`."""
        same = (one for one in self.registry.foreign() if (one.name, one.setting) == (name, setting))
        return next((f" ({one.hint})" for one in same if one.hint), "")

    def _called_elsewhere(self, name: str, names: Collection[str]) -> str | None:
        """The setting that another framework calls `name`, or the one that `name` is the last word of."""
        tables = {config.table: config.synonyms for _, config in self.passing()}
        ours_of = {
            foreign.name: foreign.setting
            for foreign in self.registry.foreign()
            if foreign.setting in names or foreign.setting.partition(".")[0] in tables
        }
        # Later ones win: a part's own synonym is nearer to what is meant than a word of any framework.
        ours_of |= OTHER_NAMES
        for table, synonyms in tables.items():
            ours_of |= {theirs: f"{table}.{ours}" for theirs, ours in synonyms.items()}
        return ours_of.get(name) or next((key for key in names if key.endswith(f".{name}")), None)

    def _dotted(self, name: str) -> str | None:
        """A setting that is spelled without the dot, of a table, selected or not; or a table's first one."""
        for setting in fields_of(RunConfig):
            if name in (setting.replace(".", "_", 1), setting.rpartition(".")[0]):
                return setting
        owned = (config.table for _, config in table_owners(self.registry))
        table = next((table for table in owned if name.startswith(f"{table}_")), None)
        return f"{table}.{name.removeprefix(f'{table}_')}" if table else None

    def foreign_note(self, name: str, is_called: Callable[[str, str], bool] = str.__eq__) -> str:
        """What stands for `name`, a setting of another framework; empty where no framework has it.

        `is_called` compares it with what they call theirs.
        """
        same = [foreign for foreign in self.registry.foreign() if is_called(name, foreign.name)]
        commands = [one.command.replace(flag_name(one.name), flag_name(name)) for one in same]
        return "".join(
            f" {foreign.framework} has {'it' if foreign.name == name else 'settings that begin so'}; "
            f"{f'`{command}` tells what stands for it here' if command else foreign.hint}."
            for foreign, command in zip(same, commands, strict=True)
        )

    def _unselected_owner(self, name: str) -> str | None:
        """The rest of the sentence where `name` is a setting of something that is not selected."""
        table, _, key = name.rpartition(".")
        first, _, rest = table.partition(".")
        known_evals = {evaluation.name for evaluation in self.evals}
        if first == EVAL and (evaluation := rest.partition(".")[0] or key) not in known_evals:
            return (
                f"belongs to the evaluation {evaluation!r}, which does not exist; add --eval "
                f"{evaluation}=PATH."
            )
        if first not in (*LIST_KINDS, Kind.MODEL, *SINGLE_KINDS, Kind.SOURCE):
            return None
        kind = Kind(first)
        parts = self.registry.configs(kind)
        owners = [entry.record.name for entry, config in parts if key in config.model_fields]
        if kind in LIST_KINDS:
            if rest not in owners or rest in self._names(kind):
                return None
            return f"belongs to {kind} {rest!r}, which is not chosen; add --{kind} {rest}."
        if rest or not owners:
            return None
        chosen = f"{self.entries[kind].record.name!r} is" if kind in self.entries else "none is"
        return f"belongs to {kind} {' or '.join(map(repr, owners))}, but {chosen} chosen."

    def _names(self, kind: Kind) -> list[str]:
        return [entry.record.name for entry in self.lists[kind]]
