"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, Source, hookimpl

NAME = "reasoning_gym"


@hookimpl
def rlcore_sources() -> Iterable[Source]:
    """The tasks."""
    yield Source(
        name=NAME,
        factory="rlcore_reasoning_gym.source:ReasoningGym",
        summary="procedural reasoning tasks (reasoning-gym)",
        config="rlcore_reasoning_gym.config:ReasoningGymConfig",
        suggests={"reward": [NAME]},
    )


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    """Their verifiers."""
    yield Component(
        name=NAME,
        factory="rlcore_reasoning_gym.reward:ReasoningGymReward",
        summary="what the task's own verifier says of the answer, from 0 to 1",
        config="rlcore_reasoning_gym.config:ReasoningGymRewardConfig",
    )
