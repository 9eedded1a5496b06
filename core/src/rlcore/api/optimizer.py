"""The optimizer and its settings."""

from dataclasses import dataclass
from typing import Literal

from pydantic import field_validator

from rlcore.api.config import Config
from rlcore.api.marks import COMMON, RESUMABLE, setting

LrSchedule = Literal["constant", "linear", "cosine"]
"""How the learning rate goes on after the warm-up."""


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


def whole_steps(steps: int | float | None) -> int | float | None:
    """A number of steps, or a share of all of them; None stays. ValueError."""
    if steps is None or steps < 1:
        return steps
    if steps != int(steps):
        raise ValueError("expected whole steps, or a share below 1")
    return int(steps)


class OptimizerOptions(Config):
    """The steps of the policy's optimizer."""

    minibatches: int = setting(1, "optimizer steps for each rollout batch", COMMON, ge=1)
    tokens_per_rank: int = setting(8192, "tokens in one micro-batch of a rank", COMMON | RESUMABLE, ge=1)
    balance: Literal["tokens", "flops"] = setting(
        "tokens",
        "what is divided evenly over ranks and micro-batches; flops: the work, so that long "
        "samples count more",
        RESUMABLE,
    )
    lr: float = setting(1e-6, "peak learning rate", COMMON, ge=0, le=10)
    lr_schedule: LrSchedule = setting("constant", "how the learning rate goes on after the warm-up", COMMON)
    min_lr: float = setting(0.0, "learning rate at the end of the schedule", ge=0)
    warmup_steps: int | float = setting(
        0, "steps of linear warm-up; below 1: the share of all steps", COMMON, ge=0
    )
    weight_decay: float = setting(0.0, "AdamW weight decay", ge=0, le=10)
    clip_grad: float = setting(1.0, "largest gradient norm; 0 does not clip", ge=0)

    _whole_warmup = field_validator("warmup_steps")(whole_steps)

    def warmup_of(self, steps: int) -> int:
        """Steps of warm-up in a run of `steps`."""
        return int(self.warmup_steps if self.warmup_steps >= 1 else self.warmup_steps * steps)

    def scheduled(self, steps: int, warmup: int) -> OptimizerSettings:
        """The optimizer of a model that trains on `steps` rollouts, of which the first `warmup` warm up."""
        return OptimizerSettings(
            lr=self.lr,
            lr_schedule=self.lr_schedule,
            # The trainer counts optimizer steps, and each rollout has `minibatches` of them.
            warmup_steps=warmup * self.minibatches,
            total_steps=steps * self.minibatches,
            min_lr=self.min_lr,
            weight_decay=self.weight_decay,
            clip_grad=self.clip_grad,
        )
