"""What this distribution registers."""

from collections.abc import Iterable

from rlcore import Component, Source, hookimpl


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    yield Component(
        name="environment",
        factory="rlcore_environment.generator:EnvironmentGenerator",
        config="rlcore_environment.config:EnvironmentConfig",
        summary="turns with an environment: reset, step, rewards",
    )
    yield Component(
        name="harbor",
        factory="rlcore_environment.adapters.harbor:HarborGenerator",
        config="rlcore_environment.config:HarborConfig",
        summary="a task of Harbor in a sandbox: commands, then the task's own tests",
    )


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    yield Component(
        name="environment",
        factory="rlcore_environment.reward:EnvironmentReward",
        config="rlcore_environment.config:EnvironmentRewardConfig",
        summary="what the environment gave, for each turn or in sum",
    )


@hookimpl
def rlcore_sources() -> Iterable[Source]:
    yield Source(
        name="episodes",
        factory="rlcore_environment.source:Episodes",
        config="rlcore_environment.config:EpisodesConfig",
        summary="one prompt, with seeds for an environment",
        suggests={"generator": "environment", "reward": "environment"},
    )
    yield Source(
        name="harbor",
        factory="rlcore_environment.source:HarborTasks",
        config="rlcore_environment.config:HarborTasksConfig",
        summary="tasks of Harbor, from their folders",
        suggests={"generator": "harbor", "reward": "environment"},
    )
    yield Source(
        name="verifiers",
        factory="rlcore_environment.source:VerifiersRows",
        config="rlcore_environment.config:VerifiersRowsConfig",
        summary="the data set of an environment of verifiers",
        suggests={"generator": "environment", "reward": "environment"},
    )
