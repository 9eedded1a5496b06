"""What this package offers to rlcore. The loss and the filter are those of rlcore-grpo."""

from collections.abc import Iterable

from rlcore import Algorithm, Component, hookimpl
from rlcore_max_rl.config import MaxRlConfig


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipe."""
    yield Algorithm(
        name="max_rl",
        summary="maximum likelihood of success: the rarer, the more it counts",
        paper="https://arxiv.org/abs/2602.02710",
        parts={"advantage": "max_rl", "loss": "ppo_clip", "filter": ["keep_all"]},
        settings={"normalizer": "per_token"},
    )


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    """The advantage estimator."""
    yield Component(
        name="max_rl",
        factory="rlcore_max_rl.advantage:MaxRlAdvantage",
        summary="reward minus group mean, over the group mean",
        config=MaxRlConfig,
    )
