"""What the learner is told."""

from dataclasses import dataclass
from typing import Literal

from rlcore.api.inputs import Input, TopTokens
from rlcore.api.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Scales:
    """What settings are multiplied by from a step on, for the callbacks ask for it (`rlcore.RunControl`).

    `lr`: the policy's learning rate; `kl`: `--kl-coef`.
    """

    lr: float = 1.0
    kl: float = 1.0


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """The settings of the run, and what else the learner must know of it.

    `needs`: the inputs that the parts read, `critic_needs` those that the critic's returns are made of;
    `top_tokens`: what the loss compares with the teacher beside the sampled tokens. `sampled`: the policy
    sampled the responses; else the data gave them, without log-probs of an engine. `reference_is_initial`:
    the first step must find the policy equal to the reference. `dtype`: of the policy. `folder`: of the run;
    a batch whose loss is not finite is saved there, and those of `--save-batches-every`.
    """

    run: RunConfig
    dtype: Literal["fp32", "bf16"]
    folder: str
    sampled: bool = True
    needs: frozenset[Input] = frozenset()
    critic_needs: frozenset[Input] = frozenset()
    top_tokens: TopTokens | None = None
    reference_is_initial: bool = False

    @property
    def rollout_as_old(self) -> bool:
        """Whether the engine's log-probs serve as the old ones."""
        return self.run.loss.old_log_probs == "rollout"
