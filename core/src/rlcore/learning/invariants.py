"""What every run checks of itself."""

from __future__ import annotations

from typing import Literal

from rlcore.api.errors import LogProbGapError, RunError
from rlcore.api.trainer import StepResult

MAX_PPO_GAP = 1e-6
"""Before the first update old and new log-probs are two forwards of the same weights on the same packs.

The bound is of the mean absolute difference: differences of either sign do not make up for each other.
"""

MAX_KL_REFERENCE = 1e-6
"""Likewise for the reference, before the policy has left it."""

BF16_MAX_MEAN_GAP = 0.02
BF16_MAX_K3 = 1e-3
"""In bf16 single tokens are noise; what is bounded is the mean gap in nats, and the mean k3."""


def check_first_step(
    result: StepResult,
    gap_max: float,
    *,
    dtype: Literal["fp32", "bf16"],
    comparable: bool,
    max_gap: float,
    same_forward: bool = True,
) -> None:
    """What must hold of the first mini-batch of a run.

    `gap_max`: largest |trainer - engine| log-prob of the fresh tokens, over all ranks. RunError where old and
    new log-probs differ before any update; LogProbGapError where trainer and engine disagree: by more than
    `max_gap` on any token in fp32, on average in bf16. Not `comparable`: the engine's log-probs are of a
    distribution that the trainer does not know, and only the first check is made; likewise without fresh
    tokens. Not `same_forward`: the engine's log-probs serve as the old ones, and the first check is not made.
    """
    tokens = int(result.metrics["tokens"])
    ppo_gap = result.metrics["ppo_gap"] / tokens
    if same_forward and not ppo_gap <= MAX_PPO_GAP:
        raise RunError(
            f"Two forwards of the first mini-batch differ by {ppo_gap:.3g} on average: bound {MAX_PPO_GAP}."
        )
    fresh = int(result.metrics["fresh"])
    if not comparable or not fresh:
        return
    mean, k3 = result.metrics["kl_engine"] / fresh, result.metrics["kl_engine_k3"] / fresh
    found = f"Trainer and engine disagree about the log-probs of the {fresh} tokens of the first step: "
    if dtype == "fp32" and not gap_max <= max_gap:
        raise LogProbGapError(
            f"{found}largest gap {gap_max:.3g}, --max-kl-engine {max_gap:g} (mean {mean:.3g})."
        )
    if dtype == "bf16" and not (mean <= BF16_MAX_MEAN_GAP and k3 <= BF16_MAX_K3):
        raise LogProbGapError(
            f"{found}mean gap {mean:.3g} (bound {BF16_MAX_MEAN_GAP}), k3 {k3:.3g} (bound {BF16_MAX_K3})."
        )


def check_reference(result: StepResult) -> None:
    """RunError where the policy that starts as its reference is not that at the first mini-batch of a run."""
    if "kl_reference" not in result.metrics:
        return
    kl = result.metrics["kl_reference"] / result.metrics["tokens"]
    if not abs(kl) <= MAX_KL_REFERENCE:
        raise RunError(
            f"The reference is the initial policy, but the KL to it is {kl:.3g} before any update: "
            f"bound {MAX_KL_REFERENCE}."
        )
