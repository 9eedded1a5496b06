"""What a registration hook yields: typed records, never objects.

A factory is a string `package.module:attribute`, resolved only when its component is selected.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rlcore.api.config import Config
from rlcore.api.inputs import TrainsOn
from rlcore.api.types import Json


class Kind(StrEnum):
    """The kinds of component."""

    ALGORITHM = "algorithm"
    ADVANTAGE = "advantage"
    LOSS = "loss"
    VALUE_LOSS = "value_loss"
    CORRECTION = "correction"
    GENERATOR = "generator"
    REWARD = "reward"
    FILTER = "filter"
    MODEL = "model"
    ENGINE = "engine"
    TRAINER = "trainer"
    SOURCE = "source"
    PRODUCER = "producer"
    MODEL_HOOK = "model_hook"
    TRACKER = "tracker"
    CALLBACK = "callback"


@dataclass(frozen=True, kw_only=True)
class Component:
    """A part that can be chosen by name. `factory` is called with an instance of `config`.

    `config`: left out where there are no settings; else of the base of the kind (`rlcore.api.part_config`).
    `suggests`: run-level defaults (canonical names) that come with choosing it; a recipe, a file or a flag
    overrides them. `default`: chosen where nothing else of its kind is (`rlcore.plugins.registry`).
    """

    name: str
    factory: str
    summary: str
    config: type[Config] = Config
    default: bool = False
    suggests: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A recipe: names of parts and vetted defaults. It is data.

    `parts`: kind → component name (filters and corrections: a list of names). `settings`: run-level defaults.
    `tables`: part kind → defaults of the selected part's config. `trains_on`: where the responses come from;
    of given ones a recipe names only the loss. `scales`: setting → factor of what a model's preset suggests
    for it: an entropy bonus that fits advantages near 1 would drown those of another scale.
    """

    name: str
    summary: str
    paper: str
    parts: Mapping[str, str | list[str]]
    settings: Mapping[str, Json] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    trains_on: TrainsOn = TrainsOn.ROLLOUTS
    scales: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ModelFamily(Component):
    """A model bridge. `trainer`: the one that it is written for.

    `architectures`: the `architectures[0]` of the config.json files that it claims; "*": of those that no
    other family claims, for a trainer that needs no bridge (`TrainerConfig.needs_bridge`).

    `preset`: `package.module:function`, called as `function(directory, seed)`, writes a tiny Hugging Face
    directory with random weights; what `--model NAME` stands for. None: the family has no preset.
    `facts`: `package.module:function` from the values of a config.json to `rlcore.ModelFacts`, for
    `rlcore plan`; it imports no torch. `sizes`: `package:folder` with the config of each published size,
    `NAME.json`.
    """

    trainer: str
    architectures: tuple[str, ...]
    preset: str | None = None
    facts: str | None = None
    sizes: str | None = None


@dataclass(frozen=True, kw_only=True)
class Source(Component):
    """A prompt source. `task`: chosen by `--task NAME` (else it is the one behind `--data`)."""

    task: bool = True


@dataclass(frozen=True, kw_only=True)
class ForeignSetting:
    """What another framework calls a setting: `name`, with underscores.

    `setting`: its name here, dotted; empty where none takes its place alone. `command`: tells what does.
    """

    framework: str
    name: str
    setting: str = ""
    command: str


Record = Component | Algorithm
"""What a hook may yield."""
