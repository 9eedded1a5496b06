"""What this package offers to rlcore. The advantage and the filter are those of rlcore-grpo."""

from collections.abc import Iterable

from rlcore import Algorithm, Component, hookimpl
from rlcore_gspo.config import GspoConfig


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipe."""
    yield Algorithm(
        name="gspo",
        summary="GRPO with one clipped ratio for each sequence",
        paper="https://arxiv.org/abs/2507.18071",
        parts={"advantage": "grpo", "loss": "gspo", "filter": ["keep_all"]},
        settings={"normalizer": "per_rollout"},
    )


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    """The loss."""
    yield Component(
        name="gspo",
        factory="rlcore_gspo.loss:Gspo",
        summary="clipped ratio of the whole sequence",
        config=GspoConfig,
    )
