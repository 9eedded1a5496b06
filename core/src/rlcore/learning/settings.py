"""The settings of the learner."""

from dataclasses import dataclass
from typing import Literal

from rlcore.api.columns import Input, TopTokens
from rlcore.api.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Scales:
    """Factors that callbacks ask for (`rlcore.RunControl`): on the policy's learning rate, and on
    `--kl-coef`.
    """

    lr: float = 1.0
    kl: float = 1.0


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """The settings of the run, and what else the learner must know of it.

    `dtype`: of the policy. `folder`: of the run, for batches that are saved. `sampled`: the policy sampled
    the responses; False: the data gave them, so there are no log-probs of an engine. `needs`: the inputs that
    the parts read. `return_needs`: of these, the inputs of the returns. `top_tokens`: the likeliest
    tokens that the loss compares. `copies`: the roles that
    the policy must equal at the first step. `serves_fp8`: engines hold weights in FP8. `policy`: the name of
    one beside the run's own.
    """

    run: RunConfig
    dtype: Literal["fp32", "bf16"]
    folder: str
    sampled: bool = True
    needs: frozenset[Input] = frozenset()
    return_needs: frozenset[Input] = frozenset()
    top_tokens: TopTokens | None = None
    copies: frozenset[str] = frozenset()
    serves_fp8: bool = False
    policy: str = ""

    @property
    def rollout_as_old(self) -> bool:
        """Whether the engine's log-probs serve as the old ones."""
        return self.run.loss.old_log_probs == "rollout"
