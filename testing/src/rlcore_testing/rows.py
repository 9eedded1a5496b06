"""What a run tells its trackers and callbacks: rows of metrics, and samples."""

from __future__ import annotations

from collections.abc import Mapping

from rlcore.api.types import Json, Sample
from rlcore_testing.filters import scored

STEPS = 6
SET = "copy"


def step_row(step: int) -> dict[str, Json]:
    """The row that a run that learns writes to `metrics.jsonl`."""
    share = step / STEPS
    return {
        "step": step,
        "weight_version": step - 1,
        "rollout/reward_mean": share,
        "rollout/reward_std": 0.5 - share / 4,
        "rollout/response_length_mean": 20.0 + step,
        "rollout/epoch": share,
        "rollout/groups": 4,
        "reward/exact_match": share,
        "train/loss": -share,
        "train/lr": 1e-3,
        "train/grad_norm": 1.0,
        "train/entropy": 2.0 - share,
        "train/kl_reference": 0.01 * step,
        "train/updates": 1,
        "train/tokens": 100,
        "time/step_s": 0.5,
    }


def idle_row(step: int) -> dict[str, Json]:
    """The row of a step whose groups were all dropped: nothing was trained."""
    kept = ("step", "weight_version", "rollout/epoch", "time/step_s")
    row = {name: value for name, value in step_row(step).items() if name in kept}
    return row | {"rollout/groups": 0, "rollout/groups_missing": 4, "train/updates": 0}


def evaluation_row(step: int) -> dict[str, Json]:
    """The row of the evaluation after `step`."""
    share = step / STEPS
    return {f"eval/{SET}/score": share, f"eval/{SET}/samples": 2, f"eval/{SET}/response_length_mean": 3.0}


def evaluated(step: int) -> Mapping[str, list[Sample]]:
    """What the policy answered in it: one sample has no score."""
    return {SET: [scored(0, step / STEPS), scored(1, 0.0, score=None)]}
