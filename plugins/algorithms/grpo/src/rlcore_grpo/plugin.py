"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Algorithm, Component, hookimpl
from rlcore_grpo.recipes import RECIPES


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipes."""
    return RECIPES


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    """The advantage estimators."""
    yield Component(
        name="grpo",
        factory="rlcore_grpo.advantage:GroupAdvantage",
        summary="reward minus group mean, over the group's standard deviation",
        config="rlcore_grpo.config:GroupAdvantageConfig",
    )
    yield Component(
        name="dr_grpo",
        factory="rlcore_grpo.advantage:GroupAdvantage",
        summary="reward minus group mean",
        config="rlcore_grpo.config:DrGroupAdvantageConfig",
    )
    yield Component(
        name="pass_at_k",
        factory="rlcore_grpo.pass_at_k:PassAtKAdvantage",
        summary="advantage of the chance that one of k responses is right",
        config="rlcore_grpo.config:PassAtKConfig",
    )
    yield Component(
        name="max_rl",
        factory="rlcore_grpo.max_rl:MaxRlAdvantage",
        summary="reward minus group mean, over the group mean",
        config="rlcore_grpo.config:MaxRlConfig",
    )


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    """The losses."""
    yield Component(
        name="ppo_clip",
        factory="rlcore_grpo.loss:PpoClip",
        summary="clipped policy ratio, optionally clipped twice",
        config="rlcore_grpo.config:PpoClipConfig",
    )
    yield Component(
        name="dppo",
        factory="rlcore_grpo.loss:Dppo",
        summary="policy ratio within a bound of the divergence",
        config="rlcore_grpo.config:DppoConfig",
    )
    yield Component(
        name="kl_cov",
        factory="rlcore_grpo.loss:KlCov",
        summary="policy ratio, with a penalty on the tokens of the largest covariance",
        config="rlcore_grpo.config:KlCovConfig",
    )
    yield Component(
        name="cispo",
        factory="rlcore_grpo.loss:Cispo",
        summary="policy gradient with clipped importance weights",
        config="rlcore_grpo.config:CispoConfig",
    )
    yield Component(
        name="sapo",
        factory="rlcore_grpo.loss:Sapo",
        summary="policy ratio through a soft gate",
        config="rlcore_grpo.config:SapoConfig",
    )
    yield Component(
        name="gspo",
        factory="rlcore_grpo.sequence_loss:Gspo",
        summary="clipped ratio of the whole sequence",
        config="rlcore_grpo.config:GspoConfig",
    )
    yield Component(
        name="gmpo",
        factory="rlcore_grpo.sequence_loss:Gmpo",
        summary="geometric mean of clipped token ratios",
        config="rlcore_grpo.config:GmpoConfig",
    )
    yield Component(
        name="vespo",
        factory="rlcore_grpo.sequence_loss:Vespo",
        summary="log-prob, weighted by the ratio of the whole sequence",
        config="rlcore_grpo.config:VespoConfig",
    )


@hookimpl
def rlcore_filters() -> Iterable[Component]:
    """The group filter."""
    yield Component(
        name="zero_std",
        factory="rlcore_grpo.filters:ZeroStd",
        summary="drop groups whose rewards are all equal",
        config="rlcore_grpo.config:ZeroStdConfig",
    )
