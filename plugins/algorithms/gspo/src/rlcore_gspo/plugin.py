"""What this package offers to rlcore. The advantage and the filter are those of rlcore-grpo."""

from collections.abc import Iterable

from rlcore import Algorithm, Component, hookimpl
from rlcore_gspo.config import GmpoConfig, GspoConfig, VespoConfig


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipes."""
    yield Algorithm(
        name="gspo",
        summary="GRPO with one clipped ratio for each sequence",
        paper="https://arxiv.org/abs/2507.18071",
        parts={"advantage": "grpo", "loss": "gspo", "filter": ["keep_all"]},
        settings={"normalizer": "per_rollout"},
    )
    yield Algorithm(
        name="luspo",
        summary="GSPO without its preference for short responses: a sum over the tokens of each",
        paper="https://arxiv.org/abs/2602.05261",
        parts={"advantage": "grpo", "loss": "gspo", "filter": ["keep_all"]},
        settings={"normalizer": "constant"},
    )
    yield Algorithm(
        name="gmpo",
        summary="GRPO with the geometric mean of the token ratios",
        paper="https://arxiv.org/abs/2507.20673",
        parts={"advantage": "grpo", "loss": "gmpo", "filter": ["keep_all"]},
        settings={"normalizer": "per_rollout"},
    )
    yield Algorithm(
        name="vespo",
        summary="policy gradient with a smooth weight of the whole sequence in place of the clip",
        paper="https://arxiv.org/abs/2602.10693",
        parts={"advantage": "grpo", "loss": "vespo", "filter": ["keep_all"]},
        settings={"normalizer": "per_token"},
    )


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    """The losses."""
    yield Component(
        name="gspo",
        factory="rlcore_gspo.loss:Gspo",
        summary="clipped ratio of the whole sequence",
        config=GspoConfig,
    )
    yield Component(
        name="gmpo",
        factory="rlcore_gspo.loss:Gmpo",
        summary="geometric mean of clipped token ratios",
        config=GmpoConfig,
    )
    yield Component(
        name="vespo",
        factory="rlcore_gspo.loss:Vespo",
        summary="log-prob, weighted by the ratio of the whole sequence",
        config=VespoConfig,
    )
