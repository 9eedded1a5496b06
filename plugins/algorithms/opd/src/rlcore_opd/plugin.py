"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Algorithm, Component, hookimpl


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipe. The teacher is the user's to name: `--teacher.model` or `--teacher.url`."""
    yield Algorithm(
        name="opd",
        summary="on-policy distillation: the reverse KL to a teacher, no reward",
        paper="https://arxiv.org/abs/2306.13649",
        parts={"advantage": "zero", "loss": "distill", "filter": []},
        settings={"normalizer": "per_token", "entropy_coef": 0.0},
    )


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    """The advantage estimator."""
    yield Component(
        name="zero",
        factory="rlcore_opd.advantage:Zero",
        summary="0: the reward is measured, not trained on",
        config="rlcore_opd.config:ZeroConfig",
    )


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    """The loss."""
    yield Component(
        name="distill",
        factory="rlcore_opd.loss:Distill",
        summary="reverse KL to a teacher, of the sampled token or of the likeliest ones",
        config="rlcore_opd.config:DistillConfig",
    )
