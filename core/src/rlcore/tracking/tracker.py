"""`Tracker`: every step goes to the run folder and to the screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from rlcore.tracking.console import Display
from rlcore.tracking.metrics import MetricsFile, Row, write_lines
from rlcore.types import Json, Sample

METRICS = "metrics.jsonl"
SAMPLES = "samples"
TRAJECTORY = "trajectory"
"""The key of a saved sample's tokens."""


class Evaluated(Protocol):
    """What is needed of the evaluation of one held-out set."""

    @property
    def samples(self) -> Sequence[Sample]:
        """One or more for each prompt."""
        ...


class Tracker:
    """Writes `metrics.jsonl` and files in `samples/` of `run_dir`.

    `resumed_step`: the step that the run goes on from; rows beyond it are removed. A context manager.
    """

    def __init__(self, run_dir: Path, display: Display, *, resumed_step: int) -> None:
        self._run_dir, self._display = run_dir, display
        self._metrics = MetricsFile(run_dir / METRICS, keep_step=resumed_step)

    def write(self, row: Mapping[str, Json]) -> None:
        """The metrics of one step, its evaluation included."""
        self._metrics.write(row)
        self._display.step(row)

    def samples(self, step: int, results: Mapping[str, Evaluated]) -> None:
        """What the policy answered in the evaluation after `step`, by the name of the held-out set."""
        write_samples(self._run_dir / SAMPLES / f"eval-{step}.jsonl", results)

    def rollout(self, step: int, samples: Iterable[Sample]) -> None:
        """What was trained on in `step`, its tokens too: `samples/rollout-<step>.jsonl`."""
        rows = [_row("rollout", sample) | {TRAJECTORY: _trajectory(sample)} for sample in samples]
        write_lines(self._run_dir / SAMPLES / f"rollout-{step}.jsonl", rows)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics.close()


def write_samples(file: Path, results: Mapping[str, Evaluated]) -> None:
    """A line for each sample, with the name of its set."""
    write_lines(file, [_row(name, sample) for name, result in results.items() for sample in result.samples])


def _row(name: str, sample: Sample) -> Row:
    score = sample.score
    return {
        "set": name,
        "prompt_id": sample.prompt.prompt_id,
        "prompt": sample.prompt.text,
        "label": sample.prompt.label,
        "response": sample.text,
        "tokens": len(sample.response_ids),
        "status": sample.status.value,
        "reward_status": sample.reward_status.value,
        "score": None if score is None else score.value,
        "parts": {} if score is None else dict(score.parts),
        "versions": sorted(sample.versions),
    }


def _trajectory(sample: Sample) -> Row:
    """What a replay needs: the tokens and what is known of each."""
    return {
        "group_id": sample.group_id,
        "index": sample.index,
        "prompt_ids": sample.prompt_ids,
        "response_ids": sample.response_ids,
        "loss_mask": sample.loss_mask,
        "log_probs": sample.log_probs,
        "metadata": dict(sample.metadata),
    }
