"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Algorithm, Component, hookimpl


@hookimpl
def rlcore_algorithms() -> Iterable[Algorithm]:
    """The recipe. Learning rates and batch sizes belong to the model and the task, not to a recipe."""
    yield Algorithm(
        name="ppo",
        summary="proximal policy optimization, with a critic",
        paper="https://arxiv.org/abs/1707.06347",
        parts={"advantage": "gae", "loss": "ppo_clip", "value_loss": "clipped", "filter": []},
        settings={"normalizer": "per_token", "whiten_advantages": True},
    )


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    """The advantage estimator."""
    yield Component(
        name="gae",
        factory="rlcore_ppo.advantage:Gae",
        summary="generalized advantage estimation, by a critic's values",
        config="rlcore_ppo.config:GaeConfig",
    )


@hookimpl
def rlcore_value_losses() -> Iterable[Component]:
    """The critic's loss."""
    yield Component(
        name="clipped",
        factory="rlcore_ppo.value_loss:Clipped",
        summary="squared error, with the value's move clipped",
        config="rlcore_ppo.config:ClippedConfig",
    )
