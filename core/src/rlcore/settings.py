"""Settings that travel from the driver to the train workers; they import no megatron, so the driver needs none."""

from dataclasses import dataclass
from typing import Literal

from rlcore.maths import Normalizer


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
