"""`rlcore eval`: a selection and its resolution without recipe, training data and trainer."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rlcore.api.config import fields_of, flag_name
from rlcore.api.errors import ConfigError, PluginError, did_you_mean
from rlcore.api.marks import Mark
from rlcore.api.plugin_file import PluginFile
from rlcore.api.records import LIST_KINDS, NAME, Kind
from rlcore.api.run_config import RunConfig
from rlcore.compose import models
from rlcore.compose.evals import EVAL, EvalConfig
from rlcore.compose.frozen import FROZEN, frozen_complaints
from rlcore.compose.lookup import find_entries, find_entry, reward_weights, text_of
from rlcore.compose.part_checks import complaints_of
from rlcore.compose.resolved import Inference
from rlcore.compose.run_checks import eval_complaints
from rlcore.compose.selection import Selection
from rlcore.config import layers, toml
from rlcore.config.fields import marked
from rlcore.config.layers import Layer, Setting
from rlcore.plugins.registry import Entry, Registry
from rlcore_cli import evals
from rlcore_cli.flags import Flag, flags, of_config
from rlcore_cli.resolve import pass_through, resolve_evals, resolve_model, resolve_part, resolve_rewards
from rlcore_cli.select import default_choices, default_clashes, written_out

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

RUN_SETTINGS = marked(RunConfig, Mark.EVALUATION)

SHARED_SETTINGS = tuple(key for key in EvalConfig.model_fields if key != "max_tokens")
"""Settings that are also flags without a name: they hold for every set whose own table does not say
otherwise.
"""

_WITH_NAME = re.compile(rf"{NAME.pattern}=.+", re.DOTALL)
_PARTS = (Kind.GENERATOR, Kind.ENGINE, Kind.CLUSTER)
_ALL_PROMPTS = 2**31 - 1


def select_evaluation(registry: Registry, file: Layer | None, flag_layer: Layer) -> Selection:
    """The selection that a file and flags make. Raises `UserError` for a name that does not exist."""
    stack = written_out(
        registry, *(_with_named_sets(layer) for layer in (file, flag_layer) if layer is not None)
    )
    entries: dict[Kind, Entry] = {}
    model, weaker = None, []
    if setting := layers.merge(stack).get("model"):
        model = models.find(text_of("model", setting), registry, setting.layer.at("model"))
        entries[Kind.MODEL] = model.entry
        if model.path is None:
            suggests = model.entry.component.suggests
            values = {key: value for key, value in suggests.items() if key in RUN_SETTINGS}
            weaker.append(Layer(label=f"preset {model.name!r}", values=values))
    choices = layers.merge([default_choices(registry, _PARTS, stack), *stack])
    entries |= {
        kind: find_entry(registry, kind, kind.value, choices[kind.value])
        for kind in _PARTS
        if kind.value in choices
    }
    rewards = choices.get(Kind.REWARD.value)
    sets = evals.choose(registry, stack)
    # A flag for every set is weaker than the set's own table, even than that of a file.
    shared = [
        replace(
            layer,
            values={f"{choice.table}.{key}": layer.values[key] for choice in sets for key in keys},
            written_as={f"{choice.table}.{key}": key for choice in sets for key in keys},
        )
        for layer in stack
        if (keys := [key for key in SHARED_SETTINGS if key in layer.values])
    ]
    # `rlcore eval` asks all prompts; a run asks a sample of them, because it evaluates often.
    ordered = [*weaker, Layer(label="default", values={"eval_prompts": _ALL_PROMPTS}), *shared, *stack]
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
    every_set = of_config(EvalConfig, "", "every set", {}, common=True)
    yield from (flag for flag in every_set if flag.name in SHARED_SETTINGS)
    without_use = fields_of(RunConfig).keys() - RUN_SETTINGS
    yield from (flag for flag in flags(selection) if flag.name not in without_use)


def resolve_evaluation(
    selection: Selection, stack: Iterable[Layer], plugin_files: Iterable[PluginFile]
) -> Inference:
    """The evaluation that `selection` of the layers `stack` describes, checked. Raises `UserError`."""
    for layer in stack:
        for name in layer.values:  # `Selection.settings` checks those of parts
            is_of_run = "." not in name or name in fields_of(RunConfig)
            if is_of_run and name not in (*CHOICES, *RUN_SETTINGS, *SHARED_SETTINGS):
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
    complaints = complaints_of([inference.generator, inference.cluster], inference.run)
    for sentence in (*complaints, *eval_complaints(inference, settings), *frozen_complaints(inference)):
        raise ConfigError(sentence)
    return inference


def to_toml(evaluation: Inference) -> str:
    """TOML that `--config` turns into this evaluation again."""
    flat: dict[str, Any] = {"model": evaluation.model.name}
    if evaluation.plugin_files:
        flat["plugin"] = [file.path for file in evaluation.plugin_files]
    validated = evaluation.run.but()  # writes 600, a default of a float, as 600.0, which is what a file gives
    flat |= {name: value for name, value in validated.values().items() if name in RUN_SETTINGS}
    flat |= evaluation.model.bridge.flat("model")
    for kind in _PARTS:
        part = getattr(evaluation, kind)
        flat |= {kind.value: part.name, **part.flat(kind)}
    flat |= evaluation.flat_rewards()
    for eval_set in evaluation.evals:
        flat |= eval_set.flat()
    for table, fields in (
        (evaluation.engine.config.table, evaluation.engine_fields),
        (FROZEN, evaluation.frozen_fields),
    ):
        flat |= {f"{table}.{key}": value for key, value in fields.items()}
    return toml.dump_settings(flat)


def _with_named_sets(layer: Layer) -> Layer:
    """`layer` with `data` and `task` as evaluations that have the names of their files or of the task."""
    values = dict(layer.values)
    sets = _as_list(values.pop(EVAL, []))
    places: dict[str, str] = {}
    written_as: dict[str, str] = {}

    def add(flag: str, name: str, where: str) -> None:
        key = f"{EVAL}.{name}.{flag}"
        first = places.setdefault(key, values.get(key, where))
        if first != where:
            raise ConfigError(
                f"{layer.at(flag)}: {layers.shown(first)} and {layers.shown(where)} are both named {name!r}; "
                f"name one yourself: --eval NAME={'TASK' if flag == 'task' else 'PATH'}."
            )
        written_as[key] = flag

    for item in _as_list(values.pop("data", [])):
        path = text_of("data", Setting(value=item, layer=layer))
        # A file whose own name has a `=` is not NAME=PATH.
        if _WITH_NAME.fullmatch(path) and not Path(path).exists():
            sets.append(path)
            continue
        stem = re.sub(r"[^a-z0-9]+", "_", Path(path).stem.lower()).strip("_")
        add("data", stem if stem[:1].isalpha() else f"set_{stem}", path)
    if "task" in values:
        task = text_of("task", Setting(value=values.pop("task"), layer=layer))
        add("task", task if NAME.fullmatch(task) else "task", task)
    names = {EVAL: sets} if sets else {}
    return replace(layer, values={**values, **names, **places}, written_as=written_as)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def unknown(name: str, layer: Layer, selection: Selection, options: Iterable[str] = ()) -> str:
    """The sentence for a name that an evaluation alone does not read; `options`: see `Selection.unknown`."""
    names = [*CHOICES, *(flag.name for flag in evaluation_flags(selection))]
    spelled = str if layer.label else flag_name
    if name in fields_of(RunConfig):
        return f"{layer.at(name)} is no setting of an evaluation, but one of rlcore train."
    hint = (
        selection.foreign_note(name)
        or did_you_mean(spelled(name), [*map(spelled, names), *options])
        or selection.foreign_note(name, fnmatch)
    )
    return f"{layer.at(name)} is no setting of an evaluation.{hint}"
