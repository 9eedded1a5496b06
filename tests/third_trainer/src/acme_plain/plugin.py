"""What this package offers to rlcore."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from rlcore import Component, RunConfig, TrainerConfig, hookimpl


class PlainConfig(TrainerConfig):
    """No settings."""

    needs_bridge: ClassVar[bool] = False

    def complaints(self, run: RunConfig, fields: Mapping[str, Any], roles: Collection[str]) -> Iterable[str]:
        """What it lacks."""
        if run.ranks > 1:
            yield f"--ranks: found {run.ranks}, but the trainer 'plain' has one; leave it out."
        if "critic" in roles:
            yield "--value-loss: the trainer 'plain' has no critic; take an --algo without one."
        if run.loss.replay_routing:
            yield "--replay-routing: the trainer 'plain' sends no tokens to experts; leave it out."
        if run.kl.reference_placement == "swapped":
            yield "--reference-placement: found swapped, but the trainer 'plain' keeps it; expected resident."


@hookimpl
def rlcore_trainers() -> Iterable[Component]:
    """The trainer."""
    yield Component(
        name="plain", factory="acme_plain.trainer:PlainTrainer", summary="one rank", config=PlainConfig
    )
