"""The KL to a teacher as part of the advantage."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.inputs import Input
from rlcore.api.training import AdvantageEstimator, AdvantageOutput


class WithTeacher:
    """An estimator's advantages minus coef · (log π - log π_teacher) of each sampled token.

    The expectation of that difference is the reverse KL of on-policy distillation
    (https://thinkingmachines.ai/blog/on-policy-distillation). It has no gradient, and a critic's returns do
    not contain it.
    """

    def __init__(self, estimator: AdvantageEstimator, coef: float) -> None:
        self._estimator = estimator
        self._coef = coef

    def estimate(self, batch: TrainBatch) -> Tensor | AdvantageOutput:
        """As the other estimator; reads the inputs `OLD_LOG_PROBS` and `TEACHER_LOG_PROBS`."""
        output = self._estimator.estimate(batch)
        columns = batch.per_token
        penalty_R = self._coef * (columns[Input.OLD_LOG_PROBS] - columns[Input.TEACHER_LOG_PROBS])
        if isinstance(output, AdvantageOutput):
            return replace(output, advantages=output.advantages - penalty_R)
        return output - penalty_R
