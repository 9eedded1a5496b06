"""What a plugin of the kind `callback` implements, and what it may ask of the run."""

from collections.abc import Mapping
from dataclasses import dataclass

from rlcore.api.types import Json


@dataclass(frozen=True, kw_only=True)
class RunControl:
    """What a callback asks of the run; by default nothing.

    `evaluate`, `save`: evaluate or save after this step. `stop`: end the run with this step, after an
    evaluation and a checkpoint; the text is the reason. `lr_scale`: from the next step on, multiply the
    scheduled learning rate of the policy by this; None: keep the factor. `kl_scale`: likewise for
    `--kl-coef`. The factors of several callbacks are multiplied.
    """

    evaluate: bool = False
    save: bool = False
    stop: str = ""
    lr_scale: float | None = None
    kl_scale: float | None = None


class Callback:
    """Kind `callback`: looks at each step, and may steer the run.

    Derive from it; its own methods ask for nothing. rlcore builds it before it starts any process. The
    factory raises `UserError` for what the user can mend. The loop calls it and waits; an error of a callback
    ends the run.
    """

    def after_step(self, step: int, metrics: Mapping[str, Json]) -> RunControl | None:
        """The row of `metrics.jsonl` of `step`, before its evaluation, if it has one."""
        return None

    def after_evaluation(self, step: int, metrics: Mapping[str, Json]) -> RunControl | None:
        """The `eval/…` metrics after `step`. Step 0 is before the training; `save` has no effect there."""
        return None

    def state(self) -> Json:
        """What `load` needs, as JSON. It goes into every checkpoint."""
        return None

    def load(self, state: Json) -> None:
        """Go on from `state`. Not called if the checkpoint has no state of this callback."""
