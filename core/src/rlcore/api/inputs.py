"""What a recipe trains on, and the columns of the batch that cost something."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Input(StrEnum):
    """A column that costs a forward pass or a generation; it is made only where a part's config `needs` it.

    Per token:
    `OLD_LOG_PROBS`: the policy's before the update; `OLD_ENTROPY`: of its distribution there, in nats.
    `REFERENCE_LOG_PROBS`: the frozen reference's.
    `TEACHER_LOG_PROBS`: the frozen teacher's. `VALUES`: the critic's, before its update, each of the state
    before the token. Per sample: `GREEDY_REWARD`: of the greedy response to the prompt.
    """

    OLD_LOG_PROBS = "old_log_probs"
    OLD_ENTROPY = "old_entropy"
    REFERENCE_LOG_PROBS = "reference_log_probs"
    TEACHER_LOG_PROBS = "teacher_log_probs"
    GREEDY_REWARD = "greedy_reward"
    VALUES = "values"


@dataclass(frozen=True, kw_only=True)
class TopTokens:
    """The `count` tokens that a model, before the update, holds likeliest in each response token's place.

    Whoever's config asks for them finds two more columns in the batch, `TOP_IDS` int64 [R, count] and
    `TEACHER_TOP_LOG_PROBS` float32 [R, count], and the policy's log-probs of the same tokens in
    `rlcore.LossInputs`.
    """

    count: int
    of: Literal["teacher", "student"]


TOP_IDS = "top_ids"
TEACHER_TOP_LOG_PROBS = "teacher_top_log_probs"


class TrainsOn(StrEnum):
    """`ROLLOUTS`: what the policy answers, and a reward judges. Given by the data: `RESPONSES`, one to each

    prompt, or `PAIRS`, a chosen and a rejected one.
    """

    ROLLOUTS = "rollouts"
    RESPONSES = "given responses"
    PAIRS = "given pairs"

    @property
    def per_prompt(self) -> int:
        """Responses that the data give to each prompt."""
        return {"rollouts": 0, "given responses": 1, "given pairs": 2}[self.value]
