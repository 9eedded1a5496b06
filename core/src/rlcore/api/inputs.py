"""What a recipe trains on, and the columns of the batch that cost something."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Input(StrEnum):
    """A column that costs a forward pass or a generation. It is made only if a part's config `needs` it.

    For each token: `OLD_LOG_PROBS`, the policy's before the update; `OLD_ENTROPY`, of the policy's
    distribution there, in nats; `REFERENCE_LOG_PROBS`; `TEACHER_LOG_PROBS`; `VALUES`, the critic's value of
    the state before the token, before its update. For each sample: `GREEDY_REWARD`, of the greedy response to
    the prompt.
    """

    OLD_LOG_PROBS = "old_log_probs"
    OLD_ENTROPY = "old_entropy"
    REFERENCE_LOG_PROBS = "reference_log_probs"
    TEACHER_LOG_PROBS = "teacher_log_probs"
    GREEDY_REWARD = "greedy_reward"
    VALUES = "values"


@dataclass(frozen=True, kw_only=True)
class TopTokens:
    """The `count` likeliest tokens at each position of the response, according to the teacher or the student.

    The student is the policy before the update. A loss whose config asks for them finds two more columns in
    the batch, `TOP_IDS` int64 [R, count] and `TEACHER_TOP_LOG_PROBS` float32 [R, count], and the policy's
    log-probs of the same tokens in `LossInputs.top_log_probs`.
    """

    count: int
    of: Literal["teacher", "student"]


TOP_IDS = "top_ids"
TEACHER_TOP_LOG_PROBS = "teacher_top_log_probs"


class TrainsOn(StrEnum):
    """What a recipe trains on.

    `ROLLOUTS`: the policy's own responses, judged by rewards. `RESPONSES`, `PAIRS`: what the data give to
    each prompt, one response, or a chosen and a rejected one.
    """

    ROLLOUTS = "rollouts"
    RESPONSES = "given responses"
    PAIRS = "given pairs"

    @property
    def per_prompt(self) -> int:
        """How many responses the data give to each prompt."""
        return {"rollouts": 0, "given responses": 1, "given pairs": 2}[self.value]
