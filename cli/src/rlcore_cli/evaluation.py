"""`rlcore eval`: a selection and its resolution without recipe, training data and trainer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rlcore.api.config import NAME, fields_of, flag_name
from rlcore.api.errors import ConfigError, PluginError, did_you_mean
from rlcore.api.plugin_file import PluginFile
from rlcore.api.records import Kind
from rlcore.api.run_config import RunConfig
from rlcore.compose import evals, models
from rlcore.compose.evals import EVAL, EvalConfig
from rlcore.compose.frozen import FROZEN, frozen_complaints
from rlcore.compose.lookup import find_entries, find_entry, reward_weights, text_of
from rlcore.compose.part_checks import complaints_of
from rlcore.compose.resolve import pass_through, resolve_evals, resolve_model, resolve_part, resolve_rewards
from rlcore.compose.resolved import Inference
from rlcore.compose.run_checks import eval_complaints
from rlcore.compose.select import default_choices, default_clashes, written_out
from rlcore.compose.selection import Selection
from rlcore.config import layers, toml
from rlcore.config.layers import Layer, Setting
from rlcore.plugins.registry import LIST_KINDS, Entry, Registry
from rlcore_cli.flags import Flag, flags, of_config

CHOICES: Mapping[str, str] = {
    "model": "model: a family (its tiny preset), a Hugging Face directory or a hub id",
    "data": "prompts to evaluate on: a .jsonl or .parquet file (repeatable)",
    "task": "procedural task whose held-out prompts to evaluate on",
    EVAL: "a set to evaluate on, by a name: NAME=PATH, or NAME=TASK",
    "reward": "reward: NAME or FILE.py:FUNCTION, with =WEIGHT in a sum; none: an answer must be the label",
    "generator": "rollout generator: NAME or FILE.py:FUNCTION",
    "engine": "generation engine",
    "cluster": "where the processes are",
}
"""The flags that choose a part, with their help."""

RUN_SETTINGS = (
    *("seed", "max_prompt_tokens", "max_response_tokens", "stop", "stop_token_ids", "dtype", "threads"),
    *("engines", "engine_concurrency", "engine_timeout", "frozen"),
    *("rollout_workers", "reward_workers", "reward_timeout", "reward_memory_gib"),
)
"""The settings of a run that have a meaning without a trainer."""

SHARED_SETTINGS = tuple(key for key in EvalConfig.model_fields if key != "max_tokens")
"""Settings that are also flags without a name: they hold for every set whose own table does not say
otherwise.
"""

_NAMED = re.compile(rf"{NAME.pattern}=.+", re.DOTALL)
_PARTS = (Kind.GENERATOR, Kind.ENGINE, Kind.CLUSTER)
_ALL_PROMPTS = 2**31 - 1


def select_evaluation(registry: Registry, file: Layer | None, flag_layer: Layer) -> Selection:
    """The selection that a file and flags make. Raises `UserError` for a name that does not exist."""
    own = written_out(
        registry, *(_with_named_sets(layer) for layer in (file, flag_layer) if layer is not None)
    )
    chosen = layers.merge(own)
    entries: dict[Kind, Entry] = {}
    model, weaker = None, []
    if "model" in chosen:
        model = models.find(text_of("model", chosen["model"]), registry, chosen["model"].layer.at("model"))
        entries[Kind.MODEL] = model.entry
        if model.path is None:
            suggests = model.entry.component.suggests
            values = {key: value for key, value in suggests.items() if key in RUN_SETTINGS}
            weaker.append(Layer(label=f"preset {model.name!r}", values=values))
    choices = layers.merge([default_choices(registry, _PARTS), *own])
    entries |= {
        kind: find_entry(registry, kind, kind.value, choices[kind.value])
        for kind in _PARTS
        if kind.value in choices
    }
    rewards = choices.get(Kind.REWARD.value)
    sets = evals.choose(registry, own)
    # A flag for every set is weaker than the set's own table, even than that of a file.
    shared = [
        replace(
            layer,
            values={f"{choice.table}.{key}": layer.values[key] for choice in sets for key in keys},
            written_as={f"{choice.table}.{key}": key for choice in sets for key in keys},
        )
        for layer in own
        if (keys := [key for key in SHARED_SETTINGS if key in layer.values])
    ]
    # `rlcore eval` asks all prompts; a run asks a sample of them, because it evaluates often.
    ordered = [*weaker, Layer(label="default", values={"eval_prompts": _ALL_PROMPTS}), *shared, *own]
    return Selection(
        registry=registry,
        layers=tuple(
            replace(layer, values={k: v for k, v in layer.values.items() if k not in SHARED_SETTINGS})
            for layer in ordered
        ),
        entries=entries,
        lists={
            **{kind: () for kind in LIST_KINDS},
            Kind.REWARD: find_entries(registry, Kind.REWARD, rewards),
        },
        weights=reward_weights(rewards),
        model=model,
        evals=sets,
        clashes=default_clashes(registry, [kind for kind in _PARTS if kind.value not in choices]),
    )


def evaluation_flags(selection: Selection) -> Iterator[Flag]:
    """The flags of an evaluation alone: of every set, of the run, and of the selected parts."""
    yield from (flag for flag in of_config(EvalConfig, "", "every set", {}) if flag.name in SHARED_SETTINGS)
    yield from (flag for flag in flags(selection) if "." in flag.name or flag.name in RUN_SETTINGS)


def resolve_evaluation(
    selection: Selection, stack: Iterable[Layer], plugin_files: Iterable[PluginFile]
) -> Inference:
    """The evaluation that `selection` of the layers `stack` describes, checked. Raises `UserError`."""
    for layer in stack:
        for name in layer.values:  # `Selection.settings` checks those with a dot
            if "." not in name and name not in (*CHOICES, *RUN_SETTINGS, *SHARED_SETTINGS):
                raise ConfigError(unknown(name, layer, selection))
        layers.build(EvalConfig, layers.merge([layer]))
    for clash in selection.clashes.values():
        raise PluginError(clash)
    if selection.model is None:
        raise ConfigError(
            f"--model is missing: nothing chooses it, expected {models.offer(selection.registry)}."
        )
    if not selection.evals:
        raise ConfigError(
            "--data is missing: there is nothing to evaluate on; add --data PATH, --task NAME or "
            "--eval NAME=PATH."
        )
    settings = selection.settings()
    entries = selection.entries
    engine = resolve_part(entries[Kind.ENGINE], settings)
    inference = Inference(
        run=layers.build(RunConfig, settings),
        model=resolve_model(selection),
        generator=resolve_part(entries[Kind.GENERATOR], settings),
        engine=engine,
        cluster=resolve_part(entries[Kind.CLUSTER], settings),
        rewards=resolve_rewards(selection, settings),
        evals=resolve_evals(selection, settings),
        engine_fields=pass_through(engine.config.table, settings),
        frozen_fields=pass_through("frozen", settings),
        plugins=selection.providers(),
        plugin_files=tuple(plugin_files),
    )
    own = complaints_of([inference.generator, inference.cluster], inference.run)
    for sentence in (*own, *eval_complaints(inference, settings), *frozen_complaints(inference)):
        raise ConfigError(sentence)
    return inference


def to_toml(chosen: Inference) -> str:
    """TOML that `--config` turns into this evaluation again."""
    flat: dict[str, Any] = {"model": chosen.model.name}
    if chosen.plugin_files:
        flat["plugin"] = [file.path for file in chosen.plugin_files]
    validated = chosen.run.but()  # writes 600, a default of a float, as 600.0, which is what a file gives
    flat |= {name: value for name, value in validated.values().items() if name in RUN_SETTINGS}
    flat |= chosen.model.bridge.flat("model")
    for kind in _PARTS:
        part = getattr(chosen, kind)
        flat |= {kind.value: part.name, **part.flat(kind)}
    flat |= chosen.flat_rewards()
    for evaluation in chosen.evals:
        flat |= evaluation.flat()
    for table, fields in ((chosen.engine.config.table, chosen.engine_fields), (FROZEN, chosen.frozen_fields)):
        flat |= {f"{table}.{key}": value for key, value in fields.items()}
    return toml.dump_settings(flat)


def _with_named_sets(layer: Layer) -> Layer:
    """`layer` with `data` and `task` as evaluations that have the names of their files or of the task."""
    values = dict(layer.values)
    sets = _listed(values.pop(EVAL, []))
    made: dict[str, str] = {}
    written_as: dict[str, str] = {}

    def add(flag: str, name: str, where: str) -> None:
        key = f"{EVAL}.{name}.{flag}"
        first = made.setdefault(key, values.get(key, where))
        if first != where:
            raise ConfigError(
                f"{layer.at(flag)}: {layers.shown(first)} and {layers.shown(where)} are both named {name!r}; "
                f"name one yourself: --eval NAME={'TASK' if flag == 'task' else 'PATH'}."
            )
        written_as[key] = flag

    for given in _listed(values.pop("data", [])):
        path = text_of("data", Setting(value=given, layer=layer))
        # A file whose own name has a `=` is not NAME=PATH.
        if _NAMED.fullmatch(path) and not Path(path).exists():
            sets.append(path)
            continue
        stem = re.sub(r"[^a-z0-9]+", "_", Path(path).stem.lower()).strip("_")
        add("data", stem if stem[:1].isalpha() else f"set_{stem}", path)
    if "task" in values:
        task = text_of("task", Setting(value=values.pop("task"), layer=layer))
        add("task", task if NAME.fullmatch(task) else "task", task)
    named = {EVAL: sets} if sets else {}
    return replace(layer, values={**values, **named, **made}, written_as=written_as)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def unknown(name: str, layer: Layer, selection: Selection, options: Iterable[str] = ()) -> str:
    """The sentence for a name that an evaluation alone does not read; `options`: see `Selection.unknown`."""
    known = [*CHOICES, *(flag.name for flag in evaluation_flags(selection))]
    shown = str if layer.label else flag_name
    if name in fields_of(RunConfig):
        return f"{layer.at(name)} is no setting of an evaluation, but one of rlcore train."
    note, near = selection.foreign_note(name), did_you_mean(shown(name), [*map(shown, known), *options])
    hint = note or near or selection.foreign_note(name, fnmatch)
    return f"{layer.at(name)} is no setting of an evaluation.{hint}"
