"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    """The rewards."""
    yield Component(
        name="remote",
        factory="rlcore_remote.remote:Remote",
        summary="what a server answers to an HTTP POST of prompt, response and label",
        config="rlcore_remote.config:RemoteConfig",
        suggests={"reward_timeout": 120.0},
    )
    yield Component(
        name="judge",
        factory="rlcore_remote.judge:Judge",
        summary="the score that a language model gives, by an OpenAI-compatible URL",
        config="rlcore_remote.config:JudgeConfig",
        suggests={"reward_timeout": 120.0},
    )
    yield Component(
        name="reward_model",
        factory="rlcore_remote.reward_model:RewardModel",
        summary="the score that a reward model, a sequence classifier, gives",
        config="rlcore_remote.config:RewardModelConfig",
        suggests={"reward_timeout": 120.0},
    )
