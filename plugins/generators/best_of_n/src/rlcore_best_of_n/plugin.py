"""What this distribution registers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    yield Component(
        name="best_of_n",
        factory="rlcore_best_of_n.generator:BestOfN",
        config="rlcore_best_of_n.config:BestOfNConfig",
        summary="the best of several candidates, by reward or by log-prob",
    )
