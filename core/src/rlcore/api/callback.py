"""What a plugin of the kind `callback` implements, and what it may ask of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlcore.api.types import Json


@dataclass(frozen=True, kw_only=True)
class RunControl:
    """What a callback asks of the run; by default nothing.

    `evaluate`, `save`: an evaluation, a checkpoint of this step. `stop`: why the run shall end with this
    step, which is then evaluated and saved; empty: it goes on. `lr_scale`: from the next step on, the
    policy's learning rate is that of the schedule times this, until the callback asks for another; None: as
    before. `kl_scale`: likewise of `--kl-coef`. The scales of several callbacks are multiplied.
    """

    evaluate: bool = False
    save: bool = False
    stop: str = ""
    lr_scale: float | None = None
    kl_scale: float | None = None


class Callback:
    """Kind `callback`: looks at each step, and may steer the run. A base, whose methods ask for nothing.

    It is built before any process is started: its factory raises `UserError` for what the user can mend. It
    is called by the loop itself, which waits for it; what it raises ends the run.
    """

    def after_step(self, step: int, metrics: Mapping[str, Json]) -> RunControl | None:
        """The row of `metrics.jsonl` of `step`, before its evaluation, if it has one."""
        return None

    def after_evaluation(self, step: int, metrics: Mapping[str, Json]) -> RunControl | None:
        """`eval/…` of the evaluation after `step`; step 0 is before the training, where nothing is saved."""
        return None

    def state(self) -> Json:
        """What `load` needs, as JSON. It goes into every checkpoint."""
        return None

    def load(self, state: Json) -> None:
        """Go on where `state` was taken. Not called where the checkpoint has no state of this callback."""
