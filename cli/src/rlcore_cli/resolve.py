"""From a selection to a `Resolved` run.

Precedence: defaults < suggestions of parts < of the model < of the source < recipe < file < flags.
"""

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from rlcore.api.errors import ConfigError, PluginError
from rlcore.api.part import Part, RewardPart
from rlcore.api.part_config import DataConfig, ProducerConfig
from rlcore.api.plugin_file import PluginFile
from rlcore.api.records import Kind
from rlcore.api.run_config import RunConfig
from rlcore.api.types import parse_json
from rlcore.compose.engine_groups import ENGINE_GROUP
from rlcore.compose.evals import EvalChoice, EvalConfig, EvalSet
from rlcore.compose.models import adopted, families
from rlcore.compose.resolved import ModelChoice, Resolved
from rlcore.compose.roles import role_fields
from rlcore.compose.run_checks import checked
from rlcore.compose.selection import Selection
from rlcore.config import layers
from rlcore.config.layers import Setting
from rlcore.plugins.registry import Entry


@contextlib.contextmanager
def _without_pydantic_plugins() -> Iterator[None]:
    """Validate by pydantic alone, whose search for its plugins is a tenth of the time of a short command."""
    name = "PYDANTIC_DISABLE_PLUGINS"
    before = os.environ.get(name)
    os.environ[name] = "__all__"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@_without_pydantic_plugins()
def resolve(selection: Selection, plugin_files: Iterable[PluginFile] = ()) -> Resolved:
    """The run that `selection` (`rlcore_cli.select`) describes. Imports no torch.

    Raises `UserError`: one sentence that names the flag or the file.
    """
    selection.require_complete()
    settings = selection.settings()
    entries = selection.entries
    run = layers.build(RunConfig, settings)
    producer = _producer(selection, run)
    engine = resolve_part(entries[Kind.ENGINE], settings)
    trainer = resolve_part(entries[Kind.TRAINER], settings)
    values = {name: setting.value for name, setting in settings.items()}
    roles = role_fields(trainer.config.table, values)
    resolved = Resolved(
        run=run,
        algorithm=entries[Kind.ALGORITHM].record.name,
        trains_on=selection.trains_on,
        advantage=_optional(selection, Kind.ADVANTAGE, settings),
        loss=resolve_part(entries[Kind.LOSS], settings),
        generator=resolve_part(entries[Kind.GENERATOR], settings),
        rewards=resolve_rewards(selection, settings, run.rewards.rank_reward),
        engine=engine,
        trainer=trainer,
        cluster=resolve_part(entries[Kind.CLUSTER], settings),
        source=resolve_part(entries[Kind.SOURCE], settings),
        filters=_several(selection, Kind.FILTER, settings),
        producer=resolve_part(producer, settings),
        names_producer=Kind.PRODUCER in entries,
        model=resolve_model(selection),
        value_loss=_optional(selection, Kind.VALUE_LOSS, settings),
        corrections=_several(selection, Kind.CORRECTION, settings),
        model_hooks=_several(selection, Kind.MODEL_HOOK, settings),
        trackers=_several(selection, Kind.TRACKER, settings),
        callbacks=_several(selection, Kind.CALLBACK, settings),
        evals=resolve_evals(selection, settings),
        trainer_fields=_typed(pass_through(trainer.config.table, settings)),
        role_fields={role: _typed(fields) for role, fields in roles.items()},
        engine_fields=pass_through(engine.config.table, settings),
        frozen_fields=pass_through("frozen", settings),
        group_fields=pass_through(ENGINE_GROUP, settings),
        plugins=selection.providers(producer),
        plugin_files=tuple(plugin_files),
    )
    return checked(resolved, settings, selection.registry)


def _producer(selection: Selection, run: RunConfig) -> Entry:
    """The chosen producer, else the default that suits the run.

    ConfigError where the chosen one does not suit.
    """
    kind, kinds = Kind.PRODUCER, (selection.trains_on, run.asynchrony.is_asynchronous)

    suiting = [
        entry
        for entry, config in selection.registry.configs(kind)
        if issubclass(config, ProducerConfig) and config.suits(*kinds)
    ]
    offer = " or ".join(entry.record.name for entry in suiting) or "one that a plugin offers"
    chosen = selection.entries.get(kind)
    if chosen is not None and chosen not in suiting:
        what = "an asynchronous run" if run.asynchrony.is_asynchronous else "a synchronous run"
        raise ConfigError(
            f"--producer: found {chosen.record.name!r}, which does not make the rollouts of {what} on "
            f"{selection.trains_on}; expected {offer}, or none."
        )
    if chosen is None:
        defaults = [entry for entry in suiting if entry.component.default]
        if not defaults and (clash := selection.registry.default_clash(kind)):
            raise PluginError(clash)
        if len(defaults) != 1:
            raise ConfigError(
                f"--producer is missing: nothing chooses what makes the rollouts of a run on "
                f"{selection.trains_on}, expected {offer}."
                f"{selection.registry.broken_note()}"
            )
        (chosen,) = defaults
    return chosen


def resolve_model(selection: Selection) -> ModelChoice:
    """The model that `selection` chooses. The rest of the selection may be incomplete."""
    model = selection.model
    assert model is not None, "a selection without --model is not resolved"
    adopting = tuple(family for family in families(selection.registry) if family.adopt)
    return ModelChoice(
        name=model.name,
        family=model.family,
        path=model.path if model.is_size or not model.path else str(adopted(model.path, adopting)),
        bridge=resolve_part(model.entry, selection.settings()),
        hub=model.hub,
        adopting=adopting,
    )


def resolve_evals(selection: Selection, settings: Mapping[str, Setting]) -> tuple[EvalSet, ...]:
    """The evaluations of `selection`.

    Their files are read with the run's keys, unless they have keys of their own.
    """
    run_source = selection.entries.get(Kind.SOURCE)
    return tuple(_eval(choice, run_source, settings) for choice in selection.evals)


def _eval(choice: EvalChoice, run_source: Entry | None, settings: Mapping[str, Setting]) -> EvalSet:
    table = choice.table
    source = choice.source.config
    if choice.source == run_source and issubclass(source, DataConfig):
        inherited = {f"{table}.source.{key}": settings.get(f"source.{key}") for key in sorted(source.shared)}
        # A setting of the evaluation's own wins over the run's.
        settings = {**{key: value for key, value in inherited.items() if value is not None}, **settings}
    parts = {kind: resolve_part(entry, settings, f"{table}.{kind}") for kind, entry in choice.parts.items()}
    return EvalSet(
        name=choice.name,
        config=layers.build(EvalConfig, settings, table),
        source=resolve_part(choice.source, settings, f"{table}.source"),
        **parts,
    )


def resolve_part(entry: Entry, settings: Mapping[str, Setting], table: str | None = None) -> Part[Any]:
    """The part with its config, which is read from `table`; None: from the table of its kind.

    The registry has checked that the config class derives from the base of the kind.
    """
    record = entry.component
    config = layers.build(entry.config, settings, table or entry.kind)
    return Part(name=record.name, factory=record.factory, config=config, adapter=record.adapter)


def _optional(selection: Selection, kind: Kind, settings: Mapping[str, Setting]) -> Part[Any] | None:
    return resolve_part(selection.entries[kind], settings) if kind in selection.entries else None


def _several(selection: Selection, kind: Kind, settings: Mapping[str, Setting]) -> tuple[Part[Any], ...]:
    return tuple(
        resolve_part(entry, settings, f"{kind}.{entry.record.name}") for entry in selection.lists[kind]
    )


def resolve_rewards(
    selection: Selection, settings: Mapping[str, Setting], ranked: Collection[str] = ()
) -> tuple[RewardPart, ...]:
    """The rewards of `selection` with their weights.

    `ranked`: names of those that count by rank among siblings.
    """
    parts = _several(selection, Kind.REWARD, settings)
    return tuple(
        RewardPart(**vars(part), weight=selection.weights[part.name], ranked=part.name in ranked)
        for part in parts
    )


def pass_through(table: str, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The settings of a table, which core does not read, by the names that their owner has for them.

    Empty for the table "": its owner takes no such settings.
    """
    return {name: setting.value for name, setting in layers.of_table(table, settings).items()}


def _typed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the trainer's library, with numbers and booleans for the texts of flags that spell them.

    So a run's file says `x = 2`, as its author would, and one that says `x = "2"` is the same run. A text
    that another spelling would replace stays one: `1.10` may be a version. Fields of an engine stay texts,
    since they become flags of its server.
    """
    typed = dict(fields)
    for name, value in fields.items():
        with contextlib.suppress(TypeError, ValueError):  # no text, no JSON, or NaN
            parsed = parse_json(value)
            if isinstance(parsed, bool | int | float) and json.dumps(parsed, allow_nan=False) == value:
                typed[name] = parsed
    return typed
