"""`Jsonl`: the tracker that writes the run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rlcore.api.config import Config
from rlcore.api.tracker import RunInfo, Tracker
from rlcore.api.types import Json, Sample
from rlcore.tracking.metrics import MetricsFile, Row, write_lines

METRICS = "metrics.jsonl"
SAMPLES = "samples"
TRAJECTORY = "trajectory"
"""The key of a saved sample's tokens."""


class Jsonl(Tracker):
    """Writes `metrics.jsonl`, `samples/eval-STEP.jsonl` and, every `save_rollouts_every` steps,
    `samples/rollout-STEP.jsonl`.
    """

    essential: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        pass

    def start(self, run: RunInfo) -> None:
        """Rows beyond `run.step` are removed; all, where the run starts anew."""
        self._samples = run.folder / SAMPLES
        self._every = int(run.settings.get("save_rollouts_every", 0))
        self._metrics = MetricsFile(run.folder / METRICS, keep_step=run.step or -1)

    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        """One line."""
        self._metrics.write(metrics)

    def evaluation(self, step: int, samples: Mapping[str, Sequence[Sample]]) -> None:
        """`samples/eval-STEP.jsonl`."""
        write_samples(self._samples / f"eval-{step}.jsonl", samples)

    def rollout(self, step: int, samples: Sequence[Sample]) -> None:
        """`samples/rollout-STEP.jsonl`, with the tokens."""
        if self._every and step % self._every == 0:
            rows = [_row("rollout", sample) | {TRAJECTORY: _trajectory(sample)} for sample in samples]
            write_lines(self._samples / f"rollout-{step}.jsonl", rows)

    def end(self, reason: str) -> None:
        """Nothing can be written afterwards."""
        self._metrics.close()


def write_samples(file: Path, samples: Mapping[str, Sequence[Sample]]) -> None:
    """A line for each sample, with the name of its set."""
    write_lines(file, [_row(name, sample) for name, of_set in samples.items() for sample in of_set])


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
        "response_ids": list(sample.response_ids),
        "loss_mask": list(sample.loss_mask),
        "log_probs": list(sample.log_probs),
        "metadata": dict(sample.metadata),
    }
