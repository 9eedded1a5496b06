"""What the learner is told."""

from dataclasses import dataclass, field
from typing import Literal

from rlcore.api.inputs import Input, TopTokens
from rlcore.api.maths import Normalizer
from rlcore.api.run_config import KlOptions


@dataclass(frozen=True, kw_only=True)
class Scales:
    """What settings are multiplied by from a step on, for the callbacks ask for it (`rlcore.RunControl`).

    `lr`: the policy's learning rate; `kl`: `--kl-coef`.
    """

    lr: float = 1.0
    kl: float = 1.0


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
    batch whose loss is not finite is saved there, and every `save_batches_every` steps what each rank trains
    on.
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
    kl: KlOptions = field(default_factory=KlOptions)
    reference_is_initial: bool = False
    critic_warmup_steps: int = 0
    whole: bool = True
    max_kl_engine: float = 1e-4
    save_batches_every: int = 0
