"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    """The reward."""
    yield Component(
        name="ifeval",
        factory="rlcore_ifeval.reward:Ifeval",
        summary="share of the prompt's verifiable instructions that the response follows (IFEval)",
        config="rlcore_ifeval.config:IfevalConfig",
    )
