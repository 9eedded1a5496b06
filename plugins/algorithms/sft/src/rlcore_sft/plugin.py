"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Algorithm, Component, TrainsOn, hookimpl
from rlcore_sft.config import SftConfig


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipe. Learning rate and batch size belong to the model and the data, not to a recipe."""
    yield Algorithm(
        name="sft",
        summary="supervised fine-tuning on given responses",
        paper="https://arxiv.org/abs/2203.02155",
        parts={"loss": "sft"},
        settings={"normalizer": "per_token", "group_size": 1, "entropy_coef": 0.0},
        trains_on=TrainsOn.RESPONSES,
    )


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    """The loss."""
    yield Component(
        name="sft",
        factory="rlcore_sft.loss:Sft",
        summary="negative log-likelihood of given responses",
        config=SftConfig,
    )
