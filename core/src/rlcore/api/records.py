"""What a registration hook yields: typed records, never objects.

A factory is a string `package.module:attribute`, resolved only when its component is selected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from rlcore.api.columns import TrainsOn

if TYPE_CHECKING:
    from rlcore.api.config import Config
    from rlcore.api.part_config import RewardConfig
    from rlcore.api.types import Json

NAME = re.compile(r"[a-z][a-z0-9_]*")
"""The form of every name that users or plugins give: of parts, evaluations, frozen models, parts of a
score.
"""

CHOICE = "name"
"""The key of a table of settings that names the part."""


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
    CLUSTER = "cluster"
    SOURCE = "source"
    PRODUCER = "producer"
    MODEL_HOOK = "model_hook"
    TRACKER = "tracker"
    CALLBACK = "callback"


LIST_KINDS = tuple(map(Kind, ("correction", "reward", "filter", "model_hook", "tracker", "callback")))
"""Kinds of which a run takes any number of parts, in order. Of every other kind it takes one."""


@dataclass(frozen=True, kw_only=True)
class Component:
    """A part that a user chooses by name. rlcore calls `factory` with an instance of `config`.

    `config`: the class of its settings, derived from the base of the kind (`rlcore.RewardConfig`, …); left
    out where there are none. As "package.module:Class" it is imported when the part is chosen, which keeps
    `rlcore --help` fast. `suggests`: settings of the run that come with choosing the part; a recipe, a file
    or a flag overrides them. `default`: the part is chosen where the user chooses no other of its kind.

    `adapter`: `package.module:function`, where `factory` names a plain function. rlcore calls it with that
    function and the name of the part; it returns the factory (`RewardAdapter.factory_of`).
    """

    name: str
    factory: str
    summary: str
    config: type[Config] | str = ""
    default: bool = False
    suggests: Mapping[str, Json] = field(default_factory=dict)
    adapter: str = ""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A recipe: names of parts and vetted defaults. It is data, not code.

    `parts`: kind → name of the part; filters and corrections take a list of names. `settings`: defaults of
    the run's settings. `tables`: kind → defaults of the part's settings. `trains_on`: where the responses
    come from; a recipe for responses of the data names only the loss. `scales`: setting → factor on the value
    that a model's preset suggests. An entropy bonus that suits advantages near 1 is too strong for smaller
    ones.
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
    """A model bridge for one trainer, named by `trainer`.

    `architectures`: it takes every config.json whose `architectures[0]` is one of these. "*" takes those that
    no other family takes, for a trainer that needs no bridge (`TrainerConfig.needs_bridge`).

    `preset`: `package.module:function`. `--model NAME` calls `function(directory, seed)`, which writes a tiny
    Hugging Face directory with random weights; None: the family has no preset. `preset_config`:
    `package.module:attribute`, the values of its config.json, by which a dry run checks the settings.
    `facts`: `package.module:function` from the values of a config.json to `rlcore.ModelFacts`, for `rlcore
    plan`. Neither imports torch. `sizes`: `package:folder` with the config.json of each published size as
    `NAME.json`, whose `_name_or_path` is its hub id.

    `adopt`: `package.module:function`, for models that come with code of their own. It gets the path of a
    directory (in a plan it has config.json alone) and a folder for copies (None: the user's cache), and
    returns the path of one whose config.json and tokenizer transformers knows without the code, such as a
    `rlcore_toolkit.readable_copy`.

    `fp32_weights`: how the names end of weights that every engine holds in fp32, whatever its dtype.

    `lazy_bridge`: in a run on the preset only the workers import the bridge, which saves a second of the
    start, and a fault of the import is told late. For a package whose tests train its preset.
    """

    trainer: str
    architectures: tuple[str, ...]
    preset: str | None = None
    preset_config: str | None = None
    facts: str | None = None
    sizes: str | None = None
    adopt: str | None = None
    lazy_bridge: bool = False
    fp32_weights: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Source(Component):
    """A prompt source.

    `task`: `--task NAME` chooses it. False: it is the source behind `--data`, whose config derives from
    `rlcore.DataConfig`; a run has one such source.
    """

    task: bool = True


@dataclass(frozen=True, kw_only=True)
class ForeignSetting:
    """A setting of another framework, or of an earlier version: `name`, with underscores.

    A `name` that ends with * stands for all that begin so, where rlcore has no setting of a similar name. In
    `command` the flag that was typed then takes its place.

    `setting`: the setting of rlcore that replaces it, dotted, and `hint`, how its values differ; empty: no
    single one does. Where the run has no such setting, `command` tells how to translate it, or else `hint`
    ends the sentence "NAME has it; …".
    """

    framework: str
    name: str
    setting: str = ""
    hint: str = ""
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class RewardAdapter:
    """How plain Python functions of a file become rewards, such as those of one framework.

    `parameters`: the adapter is for a function that has all parameters of one of these sets. Of several such
    adapters, the one with the largest set makes the reward. None takes a function with a parameter `config`,
    which is a factory. `factory_of`: as `Component.adapter`. `config`: as `Component.config`.
    `expected`: what such a function looks like, for errors.
    """

    parameters: tuple[frozenset[str], ...]
    factory_of: str
    config: type[RewardConfig] | str = ""
    expected: str = ""


Record = Component | Algorithm
"""What a hook may yield."""
