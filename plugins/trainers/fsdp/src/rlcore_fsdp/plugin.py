"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, ModelFamily, hookimpl


@hookimpl
def rlcore_trainers() -> Iterable[Component]:
    """The trainer over transformers."""
    yield Component(
        name="fsdp",
        factory="rlcore_fsdp.trainer:FsdpTrainer",
        config="rlcore_fsdp.config:FsdpConfig",
        summary="any causal language model of transformers, sharded by FSDP2",
    )


@hookimpl
def rlcore_models() -> Iterable[ModelFamily]:
    """Every architecture that no bridge claims."""
    yield ModelFamily(
        name="transformers",
        factory="rlcore_fsdp.trainer:FsdpTrainer",
        summary="any other causal language model of transformers",
        trainer="fsdp",
        architectures=("*",),
    )
