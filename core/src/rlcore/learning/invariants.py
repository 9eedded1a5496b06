"""Checks that every run makes of itself at its first step."""

from typing import Literal

from rlcore.api.errors import LogProbGapError, RunError
from rlcore.api.trainer import StepResult

MAX_PPO_GAP = 1e-6
"""Bound of mean |old - new| log-prob before the first update: both are forwards of the same weights and
micro-batches.
"""

MAX_KL_COPY = 1e-6
"""Bound of the KL to a frozen copy before the first update, where the policy is still equal to it."""

FP32_MAX_GAP = 1e-4
"""Bound of the gap of a token in fp32 between two layouts."""
BF16_MAX_MEAN_GAP = 0.02
MAX_MEANS = {"bf16": (BF16_MAX_MEAN_GAP, 1e-3), "fp8": (0.2, 0.1)}
"""Bounds of the mean gap in nats and of the mean k3, where the gap of a single token is noise.

In FP8 the engine's weights are others than the trainer's, after a resume also on the first step.
"""


def check_first_step(
    result: StepResult,
    gap_max: float,
    *,
    dtype: Literal["fp32", "bf16", "fp8"],
    comparable: bool,
    max_gap: float,
    same_forward: bool = True,
) -> None:
    """Check the first mini-batch of a run. Two things must hold.

    Old and new log-probs agree, because nothing was updated yet: otherwise `RunError`. Not checked where the
    engine's log-probs serve as the old ones (`same_forward` False).

    Trainer and engine agree: in fp32 `gap_max`, the largest |trainer - engine| log-prob of a fresh token on
    any rank, is at most `max_gap`; in bf16, and where the engine's weights are FP8, the averages are bounded.
    Otherwise `LogProbGapError`. Not checked without fresh tokens, or where top-p and the like cut the
    engine's distribution (`comparable` False).
    """
    tokens = int(result.metrics["tokens"])
    ppo_gap = result.metrics["ppo_gap"] / tokens
    # `not gap <= bound`, here and below: NaN fails it too.
    if same_forward and not ppo_gap <= MAX_PPO_GAP:
        raise RunError(
            f"Two forwards of the first mini-batch differ by {ppo_gap:.3g} on average: bound {MAX_PPO_GAP}."
        )
    fresh = int(result.metrics["fresh"])
    if not comparable or not fresh:
        return
    mean, k3 = result.metrics["kl_engine"] / fresh, result.metrics["kl_engine_k3"] / fresh
    finding = f"Trainer and engine disagree about the log-probs of the {fresh} tokens of the first step: "
    if dtype == "fp32" and not gap_max <= max_gap:
        raise LogProbGapError(
            f"{finding}largest gap {gap_max:.3g}, --max-kl-engine {max_gap:g} (mean {mean:.3g})."
        )
    if dtype == "fp32":
        return
    most, most_k3 = MAX_MEANS[dtype]
    if not (mean <= most and k3 <= most_k3):
        raise LogProbGapError(f"{finding}mean gap {mean:.3g} (bound {most}), k3 {k3:.3g} (bound {most_k3}).")


def check_copy(
    role: str, kl: float, *, dtype: Literal["fp32", "bf16"] = "fp32", is_apart: bool = False
) -> None:
    """RunError where the policy differs from its frozen copy at the first mini-batch, by their KL.

    `role`: of the copy. `is_apart`: it has workers of its own, whose layout and micro-batches may round
    differently, as an engine does.
    """
    bound = (FP32_MAX_GAP if dtype == "fp32" else BF16_MAX_MEAN_GAP) if is_apart else MAX_KL_COPY
    if not abs(kl) <= bound:
        raise RunError(
            f"The {role} is the initial policy, but before any update the KL to it is {kl:.3g}; "
            f"bound {bound}."
        )
