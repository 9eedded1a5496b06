"""From a file and flags to a `Selection`: who suggests what, and which layer wins."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlcore.api.columns import TrainsOn
from rlcore.api.errors import ConfigError
from rlcore.api.records import LIST_KINDS, Algorithm, Kind
from rlcore.compose import frozen, lookup, models
from rlcore.compose.lookup import DATA, TASK
from rlcore.compose.selection import ROLLOUT_KINDS, SINGLE_KINDS, Selection, table_owners
from rlcore.config import layers
from rlcore.config.layers import Layer, Setting
from rlcore.config.toml import NONE
from rlcore.plugins.registry import OPTIONAL_KINDS, Entry, Registry
from rlcore_cli import evals


def select(registry: Registry, file: Layer | None, flags: Layer) -> Selection:
    """The selection that a file and flags make. Raises `UserError` for a name that does not exist."""
    stack = written_out(registry, *(layer for layer in (file, flags) if layer is not None))
    chosen = layers.merge(stack)
    entries: dict[Kind, Entry] = {}
    model = None
    if "algo" in chosen:
        entries[Kind.ALGORITHM] = lookup.find_entry(registry, Kind.ALGORITHM, "algo", chosen["algo"])
    if "model" in chosen:
        model = models.find(
            lookup.text_of("model", chosen["model"]), registry, chosen["model"].layer.at("model")
        )
        entries[Kind.MODEL] = model.entry
    source = lookup.find_source(registry, stack)
    if source:
        entries[Kind.SOURCE] = source
    # A preset's suggestions fit its tiny model. They would be wrong for a model that the user brings.
    is_preset = model is not None and model.path is None
    suggesting = (Kind.MODEL, Kind.SOURCE) if is_preset else (Kind.SOURCE,)
    weaker = [_suggestions(entries[kind]) for kind in suggesting if kind in entries]
    if Kind.ALGORITHM in entries:
        weaker = [_scaled(layer, entries[Kind.ALGORITHM]) for layer in weaker]
        weaker.append(_recipe_layer(entries[Kind.ALGORITHM]))
    wanted = default_kinds(source)
    choices = layers.merge([default_choices(registry, wanted, stack), *weaker, *stack])
    recipe = entries[Kind.ALGORITHM].recipe if Kind.ALGORITHM in entries else None
    if recipe and recipe.trains_on is not TrainsOn.ROLLOUTS:
        _refuse_rollout_parts(recipe, chosen)
        # Presets and defaults choose rewards and filters for rollouts. Here the data give the responses.
        choices = {key: setting for key, setting in choices.items() if key not in ROLLOUT_KINDS}
        wanted = [kind for kind in wanted if kind not in ROLLOUT_KINDS]
    entries |= {
        kind: lookup.find_entry(registry, kind, kind.value, choices[kind.value])
        for kind in SINGLE_KINDS
        if kind.value in choices and not (kind in OPTIONAL_KINDS and choices[kind.value].value == NONE)
    }
    lists = {kind: lookup.find_entries(registry, kind, choices.get(kind.value)) for kind in LIST_KINDS}
    # Two plugins may offer one default: that matters only where nothing else chooses the part.
    missing = [kind for kind in wanted if kind.value not in choices]
    missing += [] if source else [Kind.SOURCE]
    weights = lookup.reward_weights(choices.get(Kind.REWARD.value))
    parts = [*(entries[kind] for kind in SINGLE_KINDS if kind in entries), *itertools.chain(*lists.values())]
    # Weakest first. A part may suggest settings that the recipe, a file or a flag then overrides.
    ordered = (*map(_suggestions, parts), *weaker, *stack)
    return Selection(
        registry=registry,
        layers=tuple(_without_lost_tables(registry, layer, choices, stack) for layer in ordered),
        entries=entries,
        lists=lists,
        weights=weights,
        model=model,
        evals=evals.choose(registry, stack),
        clashes=default_clashes(registry, missing),
    )


def written_out(registry: Registry, *stack: Layer) -> tuple[Layer, ...]:
    """The layers without the short forms of a file and of flags: each setting has one way to be written."""
    plain = (frozen.with_tables_as_lists(lookup.with_reward_list(layer)) for layer in stack)
    return tuple(evals.without_short_forms(layer, registry) for layer in plain)


def _refuse_rollout_parts(recipe: Algorithm, chosen: Mapping[str, Setting]) -> None:
    """Refuse parts that would do nothing: where the data give the responses, nobody works on rollouts.

    The default generator stays, because evaluations use it.
    """
    for kind in (*ROLLOUT_KINDS, Kind.GENERATOR):
        setting = chosen.get(kind.value)
        if setting is not None and setting.value not in ([], (), NONE):
            raise ConfigError(
                f"{setting.layer.at(kind.value)}: found {layers.shown(setting.value)}, but --algo "
                f"{recipe.name} trains on {recipe.trains_on}, which no {kind.value.replace('_', ' ')} works "
                "on; leave it out."
            )


def default_kinds(source: Entry | None) -> list[Kind]:
    """The kinds that need no flag, because a run on `source` takes the part that is their default.

    There is a default reward for tasks only. It compares with the label, and a task's label is the exact
    answer.
    """
    is_task = source is not None and not source.is_data_source
    return [Kind.GENERATOR, Kind.ENGINE, Kind.TRAINER, Kind.CLUSTER, *([Kind.REWARD] if is_task else [])]


def default_choices(registry: Registry, kinds: Iterable[Kind], stack: Sequence[Layer]) -> Layer:
    """The parts that plugins mark as the default of their kind. Those that clash are left out.

    A setting of one cluster alone chooses this cluster, since where a run is changes none of its numbers.
    """
    clear = [kind for kind in kinds if not registry.default_clash(kind)]
    defaults = {kind.value: entry.record.name for kind in clear if (entry := registry.default(kind))}
    fields = {name.partition(".")[2] for name in layers.merge(stack) if name.startswith("cluster.")}
    if fields and Kind.CLUSTER in clear:
        parts = registry.configs(Kind.CLUSTER)
        clusters = [entry for entry, config in parts if fields <= {*config.model_fields}]
        if len(clusters) == 1:
            defaults[Kind.CLUSTER.value] = clusters[0].record.name
    return lookup.with_reward_list(Layer(label="default", values=defaults))


def default_clashes(registry: Registry, missing: Iterable[Kind]) -> dict[Kind, str]:
    """Why some of `missing`, which nothing else chooses, have no part: two plugins offer the default one."""
    return {kind: clash for kind in missing if (clash := registry.default_clash(kind))}


def _origin(entry: Entry) -> str:
    return f"{entry.kind} {entry.record.name!r} of {entry.provider}"


def _suggestions(entry: Entry) -> Layer:
    return lookup.with_reward_list(Layer(label=_origin(entry), values=dict(entry.component.suggests)))


def _scaled(layer: Layer, entry: Entry) -> Layer:
    """A preset's suggestions, times the factors of the recipe: one that needs a tenth of the usual `lr` says
    so.
    """
    scales = entry.recipe.scales.items()
    # In 12 digits, where 0.2 * 0.1 is 0.02, as it is meant, and not 0.020000000000000004.
    scaled = {
        name: float(f"{layer.values[name] * factor:.12g}") for name, factor in scales if name in layer.values
    }
    return replace(layer, values={**layer.values, **scaled})


def _recipe_layer(entry: Entry) -> Layer:
    recipe = entry.recipe
    values: dict[str, Any] = {**recipe.settings, **recipe.parts}
    for kind, table in recipe.tables.items():
        for key, value in table.items():
            nested = value if isinstance(value, Mapping) else {"": value}
            values |= {f"{kind}.{key}.{inner}".removesuffix("."): item for inner, item in nested.items()}
    return Layer(label=_origin(entry), values=values)


def _without_lost_tables(
    registry: Registry, layer: Layer, choices: Mapping[str, Setting], stack: tuple[Layer, ...]
) -> Layer:
    """`layer` without the settings of parts that lost.

    A file may choose `loss = "a"` and set `[loss]` for it. Where a flag then chooses `--loss b`, the table of
    the file is for the wrong part, so it is dropped instead of being refused.
    """
    # Every part of a kind may have its own fields, so a field of the loser would be refused as unknown.
    lost = {
        key
        for key in (*SINGLE_KINDS, "model")
        if key in layer.values and (key not in choices or layer.values[key] != choices[key].value)
    }
    gone = [f"{key}." for key in lost]
    gone += ["frozen.", "engine_group."] if Kind.ENGINE in lost else []
    gone += [
        f"{config.table}."
        for owner, config in table_owners(registry)
        if owner.kind in lost and owner.record.name == layer.values[owner.kind]
    ]
    for kind in LIST_KINDS:
        kept = [lookup.bare_name(kind, name) for name in choices[kind].value] if kind in choices else []
        named = [lookup.bare_name(kind, name) for name in layer.values.get(kind, ())]
        gone += [f"{kind}.{name}." for name in named if name not in kept]
    gone += evals.lost_tables(layer, stack)
    gone += ["source."] if lookup.is_replaced(layer, stack, TASK, DATA) else []
    values = {name: value for name, value in layer.values.items() if not name.startswith(tuple(gone))}
    return replace(layer, values=values) if gone else layer
