"""The settings, and what the trainer says that it lacks."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from pydantic import Field
from rlcore import RunConfig, TrainerConfig, flag_name

TRAINER = "the trainer 'my_plugin'"


class MyPluginConfig(TrainerConfig):
    """Settings of the trainer `my_plugin`."""

    needs_bridge: ClassVar[bool] = False  # it trains whatever transformers loads
    sleeps: ClassVar[bool] = True  # its models have `sleep` and `wake`

    foreach: bool = Field(True, description="update all parameters at once: faster, with more memory")

    def complaints(self, run: RunConfig, fields: Mapping[str, Any], roles: Collection[str]) -> Iterable[str]:
        """rlcore refuses the run with the first sentence, before anything starts."""
        for name in ("ranks", "reference_ranks", "teacher_ranks"):
            if (ranks := run.values()[name]) > 1:
                yield f"{flag_name(name)}: found {ranks}, but {TRAINER} has one; expected 1."
        if "critic" in roles:
            yield f"--value-loss: {TRAINER} has no critic; take an --algo without one."
        if run.loss.replay_routing:
            yield f"--replay-routing: {TRAINER} sends no tokens to experts; leave it out."
        if run.kl.reference_placement == "swapped":
            yield f"--reference-placement: found swapped, but {TRAINER} keeps it; expected resident."
