"""Models that a run serves and never trains (`--frozen NAME=MODEL`), and the settings that ask them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.api.config import flag_name
from rlcore.api.errors import ConfigError
from rlcore.api.server_config import AsksServer, frozen_name
from rlcore.compose.engine_groups import ENGINE_GROUP, assigned
from rlcore.config import layers
from rlcore.config.layers import Layer

if TYPE_CHECKING:
    from rlcore.api.part import Part
    from rlcore.api.run_config import RunConfig
    from rlcore.compose.resolved import Inference

FROZEN = "frozen"


@dataclass(frozen=True, kw_only=True)
class FrozenUse:
    """A setting that asks the frozen model `name`.

    `at`: its flag. `config`: of the reward that asks; None: the model is a teacher.
    """

    at: str
    name: str
    config: AsksServer | None


def with_tables_as_lists(layer: Layer) -> Layer:
    """`layer` with the tables of a file as the lists that the flags make.

    `frozen.NAME = MODEL` becomes `NAME=MODEL` in `frozen`, and `engine_group.NAME = N` `NAME=N` in
    `engine_group`.
    """
    return _as_list(_as_list(layer, FROZEN, str, "a directory or a hub id"), ENGINE_GROUP, int, "a number")


def _as_list(layer: Layer, table: str, kind: type, expected: str) -> Layer:
    keys = [key for key in layer.values if key.startswith(f"{table}.") and key.count(".") == 1]
    if not keys:
        return layer
    values = {key: value for key, value in layer.values.items() if key not in keys}
    names = [*values.get(table, ())]
    for key in keys:
        if not isinstance(layer.values[key], kind):
            value = layers.shown(layer.values[key])
            raise ConfigError(f"{layer.at(key)}: found {value}, expected {expected}.")
        names.append(f"{key.partition('.')[2]}={layer.values[key]}")
    return replace(layer, values={**values, table: names})


def frozen_models(run: RunConfig) -> dict[str, str]:
    """Name → directory or hub id. Raises `ConfigError`."""
    expected = "NAME=MODEL, with a name of lower-case letters, digits and underscores"
    return assigned("--frozen", run.serving.frozen, expected, bool)


def with_absolute_paths(assignments: Sequence[str]) -> tuple[str, ...]:
    """`assignments` with absolute directories, which a resume finds from anywhere. Hub ids stay."""
    pairs = [assignment.partition("=") for assignment in assignments]
    return tuple(
        f"{name}={Path(model).resolve()}" if model and Path(model).is_dir() else f"{name}{equals}{model}"
        for name, equals, model in pairs
    )


def uses(chosen: Inference) -> Iterator[FrozenUse]:
    """Every setting that asks a frozen model."""
    for _, url in chosen.run.teacher.teachers:
        if (name := frozen_name(url)) is not None:
            yield FrozenUse(at="--teacher-url", name=name, config=None)
    rewards: list[tuple[str, Part]] = [(f"reward.{part.name}", part) for part in chosen.rewards]
    rewards += [
        (f"eval.{evaluation.name}.reward", evaluation.reward)
        for evaluation in chosen.evals
        if evaluation.reward is not None
    ]
    for table, part in rewards:
        config = part.config
        if isinstance(config, AsksServer) and (name := frozen_name(config.url)) is not None:
            yield FrozenUse(at=flag_name(f"{table}.url"), name=name, config=config)


def fields_of(name: str, chosen: Inference) -> Mapping[str, Any]:
    """The fields for the server of the frozen model `name`, as the user gave them."""
    return layers.of_table(name, chosen.frozen_fields)
