"""The optimizer, and its learning rate as a pure function of the steps taken."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

LrSchedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """AdamW, its learning rate over time and the clipping of gradients.

    `lr` is reached after `warmup_steps` (the first step takes `lr / warmup_steps`, never 0) and falls to
    `min_lr` at `total_steps`. `clip_grad`: largest global gradient norm, 0 = off. Betas are AdamW's usual
    0.9 and 0.999.
    """

    lr: float
    lr_schedule: LrSchedule = "constant"
    warmup_steps: int = 0
    total_steps: int = 1
    min_lr: float = 0.0
    weight_decay: float = 0.0
    clip_grad: float = 1.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_eps: float = 1e-8


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """The learning rate of the optimizer step that follows `step` finished ones."""
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    if settings.lr_schedule == "constant":
        return settings.lr
    span = max(1, settings.total_steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / span)
    left = 1.0 - progress if settings.lr_schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return settings.min_lr + (settings.lr - settings.min_lr) * left
