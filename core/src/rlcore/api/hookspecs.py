"""The hooks. Each registration hook yields records; each docstring holds an example that runs."""

# A specification has no body: pluggy calls the implementations alone.
# mypy: disable-error-code="empty-body"

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

from rlcore.api.records import Algorithm, Component, ForeignSetting, ModelFamily, RewardAdapter, Source

if TYPE_CHECKING:
    import click

PROJECT = "rlcore"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin as the implementation of the hook of its name."""


@hookspec
def rlcore_algorithms() -> Iterable[Algorithm]:
    """Yield recipes, chosen by `--algo NAME`.

    Called once, when the plugins are loaded.

    >>> from rlcore import Algorithm, hookimpl
    >>> @hookimpl
    ... def rlcore_algorithms():
    ...     yield Algorithm(
    ...         name="my_grpo",
    ...         summary="GRPO that keeps every group",
    ...         paper="https://arxiv.org/abs/2402.03300",
    ...         parts={"advantage": "grpo", "loss": "ppo_clip", "filter": []},
    ...         settings={"group_size": 16},
    ...         tables={"loss": {"clip_high": 0.28}},
    ...     )
    >>> [recipe.name for recipe in rlcore_algorithms()]
    ['my_grpo']
    """


@hookspec
def rlcore_advantages() -> Iterable[Component]:
    """Yield advantage estimators (`rlcore.AdvantageEstimator`), chosen by `--advantage NAME`.

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_advantages():
    ...     yield Component(name="raw", factory="my_package.advantages:Raw", summary="the reward itself")
    >>> [component.name for component in rlcore_advantages()]
    ['raw']
    """


@hookspec
def rlcore_losses() -> Iterable[Component]:
    """Yield losses (`rlcore.Loss`), chosen by `--loss NAME`.

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_losses():
    ...     yield Component(name="plain", factory="my_package.losses:Plain", summary="-A * log-prob")
    >>> [component.name for component in rlcore_losses()]
    ['plain']
    """


@hookspec
def rlcore_value_losses() -> Iterable[Component]:
    """Yield losses of a value model (`rlcore.ValueLoss`), chosen by `--value-loss NAME`.

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_value_losses():
    ...     yield Component(name="square", factory="my_package.values:Square", summary="(V - R)^2")
    >>> [component.name for component in rlcore_value_losses()]
    ['square']
    """


@hookspec
def rlcore_corrections() -> Iterable[Component]:
    """Yield corrections (`rlcore.Correction`), chosen by `--correction NAME` (repeatable).

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_corrections():
    ...     yield Component(name="fade", factory="my_package.fade:Fade", summary="trust stale tokens less")
    >>> [component.name for component in rlcore_corrections()]
    ['fade']
    """


@hookspec
def rlcore_generators() -> Iterable[Component]:
    """Yield rollout generators (`rlcore.Generator`), chosen by `--generator NAME`.

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_generators():
    ...     yield Component(name="debate", factory="my_package.debate:Debate", summary="two turns")
    >>> [component.name for component in rlcore_generators()]
    ['debate']
    """


@hookspec
def rlcore_rewards() -> Iterable[Component]:
    """Yield rewards (`rlcore.Reward`), chosen by `--reward NAME[=WEIGHT]` (repeatable).

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_rewards():
    ...     yield Component(name="brevity", factory="my_package.brevity:Brevity", summary="1 / length")
    >>> [component.name for component in rlcore_rewards()]
    ['brevity']
    """


@hookspec
def rlcore_reward_adapters() -> Iterable[RewardAdapter]:
    """Yield adapters of plain functions, which make rewards of them (`--reward FILE.py:FUNCTION`).

    Called once, when the plugins are loaded.

    >>> from rlcore import RewardAdapter, hookimpl
    >>> @hookimpl
    ... def rlcore_reward_adapters():
    ...     yield RewardAdapter(
    ...         parameters=(frozenset({"queries", "replies"}),), factory_of="my_package.adapter:factory_of"
    ...     )
    >>> [adapter.factory_of for adapter in rlcore_reward_adapters()]
    ['my_package.adapter:factory_of']
    """


@hookspec
def rlcore_filters() -> Iterable[Component]:
    """Yield group filters (`rlcore.Filter`), chosen by `--filter NAME` (repeatable).

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_filters():
    ...     yield Component(name="short", factory="my_package.filters:Short", summary="drop long groups")
    >>> [component.name for component in rlcore_filters()]
    ['short']
    """


@hookspec
def rlcore_models() -> Iterable[ModelFamily]:
    """Yield model bridges, chosen by `--model`: by name, or by the architecture in its `config.json`.

    Called once, when the plugins are loaded.

    A bridge is for one trainer, and that trainer says what it has to do.

    >>> from rlcore import ModelFamily, hookimpl
    >>> @hookimpl
    ... def rlcore_models():
    ...     yield ModelFamily(
    ...         name="newmodel",
    ...         factory="my_package.bridge:NewModelBridge",
    ...         summary="the NewModel family",
    ...         trainer="mine", architectures=("NewModelForCausalLM",),
    ...     )
    >>> [family.architectures for family in rlcore_models()]
    [('NewModelForCausalLM',)]
    """


@hookspec
def rlcore_engines() -> Iterable[Component]:
    """Yield generation engines (`rlcore.Engine`), chosen by `--engine NAME`.

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_engines():
    ...     yield Component(name="mine", factory="my_package.engine:MyEngine", summary="my own server")
    >>> [component.name for component in rlcore_engines()]
    ['mine']
    """


@hookspec
def rlcore_trainers() -> Iterable[Component]:
    """Yield trainers (`rlcore.Trainer`), chosen by `--trainer NAME`.

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_trainers():
    ...     yield Component(name="mine", factory="my_package.trainer:MyTrainer", summary="my own trainer")
    >>> [component.name for component in rlcore_trainers()]
    ['mine']
    """


@hookspec
def rlcore_clusters() -> Iterable[Component]:
    """Yield clusters (`rlcore.Cluster`), chosen by `--cluster NAME`.

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_clusters():
    ...     yield Component(name="slurm", factory="my_package.cluster:Slurm", summary="nodes of SLURM")
    >>> [component.name for component in rlcore_clusters()]
    ['slurm']
    """


@hookspec
def rlcore_sources() -> Iterable[Source]:
    """Yield prompt sources (`rlcore.PromptSource`), chosen by `--task NAME` or `--data PATH`.

    Called once, when the plugins are loaded.

    >>> from rlcore import Source, hookimpl
    >>> @hookimpl
    ... def rlcore_sources():
    ...     yield Source(
    ...         name="parity",
    ...         factory="my_package.parity:Parity",
    ...         summary="is the number of ones even?",
    ...         suggests={"reward": ["exact_match"]},
    ...     )
    >>> [source.name for source in rlcore_sources()]
    ['parity']
    """


@hookspec
def rlcore_producers() -> Iterable[Component]:
    """Yield producers of rollouts (`rlcore.Producer`), chosen by `--producer NAME`.

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_producers():
    ...     yield Component(name="tree", factory="my_package.tree:Tree", summary="searches a tree of answers")
    >>> [component.name for component in rlcore_producers()]
    ['tree']
    """


@hookspec
def rlcore_model_hooks() -> Iterable[Component]:
    """Yield model hooks (`rlcore.ModelHook`), chosen by `--model-hook NAME` (repeatable).

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_model_hooks():
    ...     yield Component(name="probe", factory="my_package.probe:Probe", summary="measures activations")
    >>> [component.name for component in rlcore_model_hooks()]
    ['probe']
    """


@hookspec
def rlcore_trackers() -> Iterable[Component]:
    """Yield trackers (`rlcore.Tracker`), chosen by `--tracker NAME` (repeatable).

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_trackers():
    ...     yield Component(name="post", factory="my_package.post:Post", summary="posts every reward")
    >>> [component.name for component in rlcore_trackers()]
    ['post']
    """


@hookspec
def rlcore_callbacks() -> Iterable[Component]:
    """Yield callbacks (`rlcore.Callback`), chosen by `--callback NAME` (repeatable).

    Called once, when the plugins are loaded.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_callbacks():
    ...     yield Component(name="nap", factory="my_package.nap:Nap", summary="ends the run at night")
    >>> [component.name for component in rlcore_callbacks()]
    ['nap']
    """


@hookspec
def rlcore_foreign_settings() -> Iterable[ForeignSetting]:
    """Yield what another framework calls a setting, for the hint to a user who types it.

    Called when a user types an unknown name. It may read files.

    >>> from rlcore import ForeignSetting, hookimpl
    >>> @hookimpl
    ... def rlcore_foreign_settings():
    ...     yield ForeignSetting(framework="x", name="rate", setting="lr", command="rlcore import x --rate")
    >>> [foreign.setting for foreign in rlcore_foreign_settings()]
    ['lr']
    """


@hookspec
def rlcore_commands() -> "Iterable[Component | click.Command]":
    """Yield commands of the `rlcore` program.

    Called when the program starts. `factory` names a `click.Command`, imported when the command is chosen,
    and `summary` is its line in `rlcore --help`; the record has no other fields. A plugin file may yield the
    `click.Command` itself.

    >>> from rlcore import Component, hookimpl
    >>> @hookimpl
    ... def rlcore_commands():
    ...     yield Component(name="hello", factory="my_package.command:hello", summary="Greet the world.")
    >>> [command.name for command in rlcore_commands()]
    ['hello']
    """
