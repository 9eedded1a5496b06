"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Algorithm, Component, TrainsOn, hookimpl


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipes. Learning rate and batch size belong to the model and the data, not to a recipe."""
    yield Algorithm(
        name="sft",
        summary="supervised fine-tuning on given responses",
        paper="https://arxiv.org/abs/2203.02155",
        parts={"loss": "sft"},
        settings={"normalizer": "per_token", "group_size": 1, "entropy_coef": 0.0},
        trains_on=TrainsOn.RESPONSES,
    )
    yield Algorithm(
        name="dpo",
        summary="direct preference optimization on given pairs",
        paper="https://arxiv.org/abs/2305.18290",
        parts={"loss": "dpo"},
        settings={"normalizer": "per_rollout", "group_size": 2, "entropy_coef": 0.0},
        trains_on=TrainsOn.PAIRS,
    )


@hookimpl
def rlcore_producers() -> Iterable[Component]:
    """The producer of recipes that train on given responses or pairs."""
    yield Component(
        name="offline",
        factory="rlcore_offline.producer:offline_producer",
        summary="the responses that the data give",
        config="rlcore_offline.config:OfflineConfig",
        default=True,
    )


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    """The losses."""
    yield Component(
        name="sft",
        factory="rlcore_offline.loss:Sft",
        summary="negative log-likelihood of given responses",
        config="rlcore_offline.config:SftConfig",
    )
    yield Component(
        name="dpo",
        factory="rlcore_offline.loss:Dpo",
        summary="log-sigmoid of the difference of implicit rewards, or IPO's square",
        config="rlcore_offline.config:DpoConfig",
    )


@hookimpl
def rlcore_commands() -> Iterable[Component]:
    """`pairs`."""
    yield Component(
        name="pairs",
        factory="rlcore_offline.pairs:pairs",
        summary="Pair the best and the worst response to each prompt in SAMPLES "
        "(RUN/samples/rollout-N.jsonl).",
    )
