"""What this package offers to rlcore. The advantage and the filter are those of rlcore-grpo."""

from collections.abc import Iterable

from rlcore import Algorithm, Component, hookimpl
from rlcore_sapo.config import SapoConfig


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipe."""
    yield Algorithm(
        name="sapo",
        summary="GRPO with a soft gate in place of the clip",
        paper="https://arxiv.org/abs/2511.20347",
        parts={"advantage": "grpo", "loss": "sapo", "filter": ["keep_all"]},
        settings={"normalizer": "per_rollout"},
    )


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    """The loss."""
    yield Component(
        name="sapo",
        factory="rlcore_sapo.loss:Sapo",
        summary="policy ratio through a soft gate",
        config=SapoConfig,
    )
