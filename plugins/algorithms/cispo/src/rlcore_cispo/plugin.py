"""What this package offers to rlcore. The advantage and the filter are those of rlcore-grpo."""

from collections.abc import Iterable

from rlcore import Algorithm, Component, hookimpl
from rlcore_cispo.config import CispoConfig


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipe."""
    yield Algorithm(
        name="cispo",
        summary="clipped importance weights: each token keeps its gradient",
        paper="https://arxiv.org/abs/2506.13585",
        parts={"advantage": "grpo", "loss": "cispo", "filter": ["zero_std"]},
        settings={"normalizer": "per_token"},
    )


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    """The loss."""
    yield Component(
        name="cispo",
        factory="rlcore_cispo.loss:Cispo",
        summary="policy gradient with clipped importance weights",
        config=CispoConfig,
    )
