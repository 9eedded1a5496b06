"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Algorithm, Component, hookimpl


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipes. Learning rate and batch sizes belong to the model and the task, not to a recipe."""
    # REINFORCE, RLOO and ReMax sum over the tokens of a response, as the gradient of its log-prob does. Their
    # advantages have the scale of the rewards.
    yield Algorithm(
        name="reinforce",
        summary="policy gradient with return-to-go and the batch's mean as baseline",
        paper="https://doi.org/10.1007/BF00992696",
        parts={"advantage": "reinforce", "loss": "reinforce", "filter": []},
        settings={"normalizer": "constant"},
        scales={"entropy_coef": 0.1},
    )
    yield Algorithm(
        name="rloo",
        summary="REINFORCE with the other rollouts of the prompt as baseline",
        paper="https://arxiv.org/abs/2402.14740",
        parts={"advantage": "rloo", "loss": "reinforce", "filter": []},
        settings={"normalizer": "constant"},
        scales={"entropy_coef": 0.1},
    )
    yield Algorithm(
        name="opo",
        summary="REINFORCE with the group's length-weighted mean reward as baseline",
        paper="https://arxiv.org/abs/2505.23585",
        parts={"advantage": "opo", "loss": "reinforce", "filter": []},
        settings={"normalizer": "constant"},
        scales={"entropy_coef": 0.1},
    )
    yield Algorithm(
        name="gpg",
        summary="group policy gradient: no clip, no standard deviation, no dead weight of equal groups",
        paper="https://arxiv.org/abs/2504.02546",
        parts={"advantage": "gpg", "loss": "reinforce", "filter": []},
        settings={"normalizer": "per_token"},
        scales={"entropy_coef": 0.1},
    )
    yield Algorithm(
        name="remax",
        summary="REINFORCE with the reward of the greedy response as baseline",
        paper="https://arxiv.org/abs/2310.10505",
        parts={"advantage": "remax", "loss": "reinforce", "filter": []},
        settings={"normalizer": "constant"},
        scales={"entropy_coef": 0.1},
    )
    yield Algorithm(
        name="reinforce++",
        summary="returns normalized over the whole batch, with PPO's clipped loss",
        paper="https://arxiv.org/abs/2501.03262",
        parts={"advantage": "reinforce_plus_plus", "loss": "ppo_clip", "filter": []},
        settings={"normalizer": "per_rollout"},
    )
    yield Algorithm(
        name="reinforce++-baseline",
        summary="REINFORCE++ with the group's mean reward as baseline",
        paper="https://arxiv.org/abs/2501.03262",
        parts={"advantage": "reinforce_plus_plus_baseline", "loss": "ppo_clip", "filter": []},
        settings={"normalizer": "per_rollout"},
    )


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    """The advantage estimators."""
    yield Component(
        name="reinforce",
        factory="rlcore_reinforce.advantage:ReinforceAdvantage",
        summary="return-to-go, minus the mean of the batch",
        config="rlcore_reinforce.config:ReinforceConfig",
    )
    yield Component(
        name="rloo",
        factory="rlcore_reinforce.advantage:LeaveOneOut",
        summary="reward minus the mean of the group's other rollouts",
        config="rlcore_reinforce.config:SiblingsConfig",
    )
    yield Component(
        name="opo",
        factory="rlcore_reinforce.advantage:OptimalBaseline",
        summary="reward minus the group's mean reward, weighted by length",
        config="rlcore_reinforce.config:SiblingsConfig",
    )
    yield Component(
        name="gpg",
        factory="rlcore_reinforce.advantage:GroupPolicyGradient",
        summary="reward minus group mean, scaled by the share of groups with a signal",
        config="rlcore_reinforce.config:SiblingsConfig",
    )
    yield Component(
        name="remax",
        factory="rlcore_reinforce.advantage:ReMax",
        summary="return-to-go, minus the reward of the greedy response",
        config="rlcore_reinforce.config:ReMaxConfig",
    )
    yield Component(
        name="reinforce_plus_plus",
        factory="rlcore_reinforce.advantage:ReinforcePlusPlus",
        summary="return-to-go, normalized over the batch",
        config="rlcore_reinforce.config:ReinforcePlusPlusConfig",
    )
    yield Component(
        name="reinforce_plus_plus_baseline",
        factory="rlcore_reinforce.advantage:ReinforcePlusPlusBaseline",
        summary="reward minus group mean, normalized over the batch",
        config="rlcore_reinforce.config:PlusPlusBaselineConfig",
    )


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    """The loss."""
    yield Component(
        name="reinforce",
        factory="rlcore_reinforce.loss:Reinforce",
        summary="minus advantage times log-prob",
    )
