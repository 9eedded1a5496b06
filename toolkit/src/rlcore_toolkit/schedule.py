"""The learning rate as a pure function of the steps taken."""

import math

from rlcore import OptimizerSettings


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
