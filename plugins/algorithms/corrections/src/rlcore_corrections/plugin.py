"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_corrections() -> Iterable[Component]:
    """The corrections."""
    yield Component(
        name="tis",
        factory="rlcore_corrections.weights:Tis",
        summary="truncated importance weight of each token, trainer over engine",
        config="rlcore_corrections.config:TisConfig",
    )
    yield Component(
        name="mis",
        factory="rlcore_corrections.weights:Mis",
        summary="importance weight of token or sequence, truncated, clipped or masked, with a veto",
        config="rlcore_corrections.config:MisConfig",
    )
    yield Component(
        name="icepop",
        factory="rlcore_corrections.weights:IcePop",
        summary="leave out tokens on which trainer and engine disagree",
        config="rlcore_corrections.config:IcePopConfig",
    )
    yield Component(
        name="divergence",
        factory="rlcore_corrections.weights:Divergence",
        summary="leave out tokens or samples by an estimate of the KL from engine to trainer",
        config="rlcore_corrections.config:DivergenceConfig",
    )
    yield Component(
        name="opsm",
        factory="rlcore_corrections.weights:Opsm",
        summary="leave out bad samples that the policy has moved away from",
        config="rlcore_corrections.config:OpsmConfig",
    )
    yield Component(
        name="decoupled",
        factory="rlcore_corrections.weights:Decoupled",
        summary="decoupled PPO: the whole weight, proximal policy over behavior policy",
        config="rlcore_corrections.config:DecoupledConfig",
    )
    yield Component(
        name="self_normalized",
        factory="rlcore_corrections.batch_weights:SelfNormalized",
        summary="importance weight of token or sequence over its mean in the batch",
        config="rlcore_corrections.config:SelfNormalizedConfig",
    )
    yield Component(
        name="m2po",
        factory="rlcore_corrections.batch_weights:M2po",
        summary="leave out the fewest tokens that bound the second moment of the log-ratio",
        config="rlcore_corrections.config:M2poConfig",
    )
    yield Component(
        name="top_entropy",
        factory="rlcore_corrections.batch_weights:TopEntropy",
        summary="train on the tokens at which the policy is least certain",
        config="rlcore_corrections.config:TopEntropyConfig",
    )
    yield Component(
        name="clip_cov",
        factory="rlcore_corrections.batch_weights:ClipCov",
        summary="leave out a few tokens of a large covariance of log-prob and advantage",
        config="rlcore_corrections.config:ClipCovConfig",
    )
