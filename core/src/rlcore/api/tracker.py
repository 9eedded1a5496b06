"""What a plugin of the kind `tracker` implements, and what it is told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rlcore.api.types import Json, Sample


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What a tracker is told first.

    `folder`: of the run. `settings`: every setting by its dotted name, as in `run.toml`, without secrets.
    `plugins`: plugin → version. `step`: 0, or the step of the checkpoint that a resumed run goes on from. The
    run repeats the steps after it, so a tracker forgets what it knows of them. `decode`: text of token ids,
    special tokens included.
    """

    folder: Path
    settings: Mapping[str, Json]
    plugins: Mapping[str, str]
    step: int
    decode: Callable[[Sequence[int]], str] | None = None


class Tracker:
    """Kind `tracker`: is told what happens in a run. Derive from it; its own methods do nothing.

    rlcore builds it before it starts any process. The factory raises `UserError` for what the user can mend,
    and starts nothing itself. All methods are called in a thread of the tracker's own, so a slow one does not
    delay the run. When one raises, rlcore warns once and the run goes on. After an error of `start`, the
    tracker is not called again.
    """

    essential: ClassVar[bool] = False
    """The run depends on what it writes.

    The loop itself then calls it, waits for it, and ends with its errors.
    """

    def start(self, run: RunInfo) -> None:
        """The run begins, or goes on."""

    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        """The row of `metrics.jsonl` of `step`, evaluations included; step 0 is before the training."""

    def evaluation(self, step: int, samples: Mapping[str, Sequence[Sample]]) -> None:
        """The answers of the evaluation after `step`, by the name of the set."""

    def rollout(self, step: int, samples: Sequence[Sample]) -> None:
        """The samples of `step`, without the extras that models alone read (`rlcore.Column.reach`).

        Every `save_rollouts_every` steps they have two more `extras`, with one number for each response
        token: `advantages`, and `trained_log_probs`, the policy's log-prob when the token was trained on
        (NaN: it was not).
        """

    def checkpoint(self, step: int, folder: Path) -> None:
        """The checkpoint of `step` is complete."""

    def end(self, reason: str) -> None:
        """The last call. `reason`: the `exit_reason` of the run's summary."""
