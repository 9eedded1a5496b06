"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl
from rlcore_corrections.config import (
    DecoupledConfig,
    DivergenceConfig,
    IcePopConfig,
    MisConfig,
    OpsmConfig,
    TisConfig,
)


@hookimpl
def rlcore_corrections() -> Iterable[Component]:
    """The corrections."""
    yield Component(
        name="tis",
        factory="rlcore_corrections.weights:Tis",
        summary="truncated importance weight of each token, trainer over engine",
        config=TisConfig,
    )
    yield Component(
        name="mis",
        factory="rlcore_corrections.weights:Mis",
        summary="importance weight of token or sequence, truncated, clipped or masked, with a veto",
        config=MisConfig,
    )
    yield Component(
        name="icepop",
        factory="rlcore_corrections.weights:IcePop",
        summary="leave out tokens on which trainer and engine disagree",
        config=IcePopConfig,
    )
    yield Component(
        name="divergence",
        factory="rlcore_corrections.weights:Divergence",
        summary="leave out tokens or samples by an estimate of the KL from engine to trainer",
        config=DivergenceConfig,
    )
    yield Component(
        name="opsm",
        factory="rlcore_corrections.weights:Opsm",
        summary="leave out bad samples that the policy has moved away from",
        config=OpsmConfig,
    )
    yield Component(
        name="decoupled",
        factory="rlcore_corrections.weights:Decoupled",
        summary="decoupled PPO: the whole weight, proximal policy over behavior policy",
        config=DecoupledConfig,
    )
