"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_callbacks() -> Iterable[Component]:
    """The callbacks that watch a metric."""
    yield Component(
        name="stop_at",
        factory="rlcore_stop_at.callbacks:StopAt",
        summary="end the run where a metric passes a bound, or becomes no better",
        config="rlcore_stop_at.config:StopAtConfig",
    )
    yield Component(
        name="reduce_lr",
        factory="rlcore_stop_at.callbacks:ReduceLr",
        summary="lower the learning rate where a metric becomes no better",
        config="rlcore_stop_at.config:ReduceLrConfig",
    )
    yield Component(
        name="adaptive_kl",
        factory="rlcore_stop_at.callbacks:AdaptiveKl",
        summary="steer the KL to the reference to a target, by its coefficient",
        config="rlcore_stop_at.config:AdaptiveKlConfig",
    )
