"""What this package offers to rlcore."""

from collections.abc import Iterable

import click

from rlcore import Algorithm, Component, TrainsOn, hookimpl
from rlcore_dpo.config import DpoConfig
from rlcore_dpo.pairs import pairs


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipe. Learning rate and batch size belong to the model and the data, not to a recipe."""
    yield Algorithm(
        name="dpo",
        summary="direct preference optimization on given pairs",
        paper="https://arxiv.org/abs/2305.18290",
        parts={"loss": "dpo"},
        settings={"normalizer": "per_rollout", "group_size": 2, "entropy_coef": 0.0},
        trains_on=TrainsOn.PAIRS,
    )


@hookimpl
def rlcore_commands() -> Iterable[click.Command]:
    """`pairs`."""
    yield pairs


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    """The loss."""
    yield Component(
        name="dpo",
        factory="rlcore_dpo.loss:Dpo",
        summary="log-sigmoid of the difference of implicit rewards, or IPO's square",
        config=DpoConfig,
    )
