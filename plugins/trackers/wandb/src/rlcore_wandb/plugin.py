"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_trackers() -> Iterable[Component]:
    """Weights & Biases."""
    yield Component(
        name="wandb",
        factory="rlcore_wandb.tracker:Wandb",
        summary="a run of Weights & Biases",
        config="rlcore_wandb.config:WandbConfig",
    )
