"""Settings that travel from the driver to the train workers."""

from dataclasses import dataclass
from typing import Literal

from rlcore.inputs import Input, TopTokens
from rlcore.maths import KlKind, Normalizer

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


@dataclass(frozen=True, kw_only=True)
class KlSettings:
    """The KL to the reference. `coef` 0: it is measured, and trained on nowhere.

    `place`: it is added to the loss of each token, or taken from its reward before the advantages.
    `unbiased`: in the loss, times the ratio of the new to the old policy, which carries a gradient too
    (https://arxiv.org/abs/2512.02556, section 3.1).
    """

    coef: float = 0.0
    estimator: KlKind = "k3"
    place: Literal["loss", "reward"] = "loss"
    unbiased: bool = False


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """Plain values, for they travel to the worker.

    `needs`: the inputs that the parts read, `critic_needs` those that the critic's returns are made of;
    `top_tokens`: what the loss compares with the teacher beside the sampled tokens. `sampled`: the policy
    sampled the responses; else the data gave them, without log-probs of an engine. `distill_coef`: of the KL
    to the teacher in the advantages. `rollout_as_old`: the engine's log-probs serve as the old ones.
    `critic_warmup_steps`: the first steps, which leave the policy as it is. `reference_is_initial`: the first
    step must find the policy equal to the reference. `whole`: the engine samples from the whole distribution
    (`RunConfig.samples_whole`). `max_kl_engine`: bound of the largest gap in fp32. `folder`: of the run; a
    batch whose loss is not finite is saved there.
    """

    minibatches: int
    normalizer: Normalizer
    max_response_tokens: int
    temperature: float
    tokens_per_rank: int
    dtype: Literal["fp32", "bf16"]
    folder: str
    entropy_coef: float = 0.0
    sampled: bool = True
    rollout_as_old: bool = False
    needs: frozenset[Input] = frozenset()
    critic_needs: frozenset[Input] = frozenset()
    top_tokens: TopTokens | None = None
    distill_coef: float = 0.0
    whiten_advantages: bool = False
    kl: KlSettings = KlSettings()
    reference_is_initial: bool = False
    critic_warmup_steps: int = 0
    whole: bool = True
    max_kl_engine: float = 1e-4
