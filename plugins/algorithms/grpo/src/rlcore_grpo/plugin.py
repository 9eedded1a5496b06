"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Algorithm, Component, hookimpl
from rlcore_grpo.config import (
    DppoConfig,
    DrGroupAdvantageConfig,
    GroupAdvantageConfig,
    KlCovConfig,
    PassAtKConfig,
    PpoClipConfig,
    ZeroStdConfig,
)


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipes. Learning rate and batch sizes belong to the model and the task, not to a recipe."""
    yield Algorithm(
        name="grpo",
        summary="group-relative policy optimization",
        paper="https://arxiv.org/abs/2402.03300",
        parts={"advantage": "grpo", "loss": "ppo_clip", "filter": ["keep_all"]},
        settings={"normalizer": "per_rollout"},
    )
    yield Algorithm(
        name="dr_grpo",
        summary="GRPO without its biases: no standard deviation, a constant denominator",
        paper="https://arxiv.org/abs/2503.20783",
        parts={"advantage": "grpo", "loss": "ppo_clip", "filter": ["keep_all"]},
        settings={"normalizer": "constant"},
        tables={"advantage": {"std": False}},
        scales={"entropy_coef": 0.1},  # the advantages have the scale of the rewards
    )
    yield Algorithm(
        name="dapo",
        summary="GRPO with a higher upper clip, token mean and no groups of equal rewards",
        paper="https://arxiv.org/abs/2503.14476",
        parts={"advantage": "grpo", "loss": "ppo_clip", "filter": ["zero_std"]},
        settings={"normalizer": "per_token", "group_size": 16},
        tables={"loss": {"clip_high": 0.28}},
    )
    yield Algorithm(
        name="pass_at_k",
        summary="train the chance that one of k responses is right",
        paper="https://arxiv.org/abs/2508.10751",
        parts={"advantage": "pass_at_k", "loss": "ppo_clip", "filter": ["keep_all"]},
        settings={"normalizer": "per_token"},
    )
    yield Algorithm(
        name="dppo",
        summary="GRPO that bounds the divergence from the engine's policy, not the ratio",
        paper="https://arxiv.org/abs/2602.04879",
        parts={"advantage": "grpo", "loss": "dppo", "filter": ["keep_all"]},
        settings={"normalizer": "per_rollout", "old_log_probs": "rollout"},
    )
    yield Algorithm(
        name="kl_cov",
        summary="GRPO that penalizes the tokens which would make the policy certain",
        paper="https://arxiv.org/abs/2505.22617",
        parts={"advantage": "grpo", "loss": "kl_cov", "filter": ["keep_all"]},
        settings={"normalizer": "per_token", "minibatches": 4},
    )


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    """The advantage estimators."""
    yield Component(
        name="grpo",
        factory="rlcore_grpo.advantage:GroupAdvantage",
        summary="reward minus group mean, over the group's standard deviation",
        config=GroupAdvantageConfig,
    )
    yield Component(
        name="dr_grpo",
        factory="rlcore_grpo.advantage:GroupAdvantage",
        summary="reward minus group mean",
        config=DrGroupAdvantageConfig,
    )
    yield Component(
        name="pass_at_k",
        factory="rlcore_grpo.pass_at_k:PassAtKAdvantage",
        summary="advantage of the chance that one of k responses is right",
        config=PassAtKConfig,
    )


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    """The losses."""
    yield Component(
        name="ppo_clip",
        factory="rlcore_grpo.loss:PpoClip",
        summary="clipped policy ratio, optionally clipped twice",
        config=PpoClipConfig,
    )
    yield Component(
        name="dppo",
        factory="rlcore_grpo.loss:Dppo",
        summary="policy ratio within a bound of the divergence",
        config=DppoConfig,
    )
    yield Component(
        name="kl_cov",
        factory="rlcore_grpo.loss:KlCov",
        summary="policy ratio, with a penalty on the tokens of the largest covariance",
        config=KlCovConfig,
    )


@hookimpl
def rlcore_filters() -> Iterable[Component]:
    """The group filters."""
    yield Component(name="keep_all", factory="rlcore_grpo.filters:KeepAll", summary="keep every group")
    yield Component(
        name="zero_std",
        factory="rlcore_grpo.filters:ZeroStd",
        summary="drop groups whose rewards are all equal",
        config=ZeroStdConfig,
    )
