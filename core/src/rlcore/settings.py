"""Settings that travel from the driver to the train workers, in a module that imports no megatron."""

from dataclasses import dataclass
from typing import Literal

from rlcore.maths import Normalizer

LrSchedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """AdamW, its learning rate over time and the clipping of gradients.

    `lr` is reached after `warmup_steps` (the first step takes `lr / warmup_steps`, never 0) and falls to
    `min_lr` at `total_steps`. `clip_grad`: largest global gradient norm, 0 = off. Betas are AdamW's usual
    0.9 and 0.999 (megatron's default as well).
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


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """Plain values, for they travel to the worker.

    `whole`: the engine samples from the whole distribution (`Sampling.is_whole`). `max_kl_engine`: bound of
    the largest gap in fp32. `folder`: of the run; a batch whose loss is not finite is saved there.
    """

    minibatches: int
    normalizer: Normalizer
    max_response_tokens: int
    temperature: float
    tokens_per_rank: int
    dtype: Literal["fp32", "bf16"]
    folder: str
    entropy_coef: float = 0.0
    whole: bool = True
    max_kl_engine: float = 1e-4
