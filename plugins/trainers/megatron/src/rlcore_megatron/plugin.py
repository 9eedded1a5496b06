"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_trainers() -> Iterable[Component]:
    """The trainer on megatron-core."""
    yield Component(
        name="megatron",
        factory="rlcore_megatron.trainer:MegatronTrainer",
        config="rlcore_megatron.config:MegatronConfig",
        summary="megatron-core, on GPUs and CPUs, under every layout",
        default=True,
    )
