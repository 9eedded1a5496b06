"""What a plugin of the kind `tracker` implements, and what it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rlcore.api.types import Json, Sample


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What a tracker is told first.

    `folder`: of the run. `settings`: every setting by its dotted name, as `run.toml` has it, without
    secrets. `plugins`: plugin → version. `step`: 0, or the step that a resumed run goes on from: a tracker
    forgets what it was told of later ones, for they are taken again. `decode`: text of token ids, special
    tokens included.
    """

    folder: Path
    settings: Mapping[str, Json]
    plugins: Mapping[str, str]
    step: int
    decode: Callable[[Sequence[int]], str] | None = None


class Tracker:
    """Kind `tracker`: is told of what happens in a run, in the driver. A base, whose methods do nothing.

    It is built before any process is started: its factory raises `UserError` for what the user can mend, and
    starts nothing. All calls come from one thread, which is the tracker's own: it holds nothing up. What it
    raises is told once as a warning, and the run goes on; one whose `start` raised is told nothing more.
    """

    essential: ClassVar[bool] = False
    """The run rests on what it writes: it is told at once, by the loop itself, and its errors end the run."""

    def start(self, run: RunInfo) -> None:
        """The run begins, or goes on."""

    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        """The row of `metrics.jsonl` of `step`, evaluations included; step 0 is before the training."""

    def evaluation(self, step: int, samples: Mapping[str, Sequence[Sample]]) -> None:
        """What the policy answered in the evaluation after `step`, by the name of the set."""

    def rollout(self, step: int, samples: Sequence[Sample]) -> None:
        """What was trained on in `step`.

        Every `save_rollouts_every` steps the samples have two more `extras`, one number a response token:
        `advantages` and `trained_log_probs`, the policy's as each token was trained on (NaN: it was not).
        """

    def checkpoint(self, step: int, folder: Path) -> None:
        """The checkpoint of `step` is complete."""

    def end(self, reason: str) -> None:
        """The run ends: `exit_reason`, as its summary has it. Nothing is told afterwards."""
