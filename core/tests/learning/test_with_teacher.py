"""What an advantage estimator promises holds with a teacher's KL in it, too."""

import torch

from rlcore.api.batch import TrainBatch
from rlcore.api.inputs import Input
from rlcore.learning.preparation import WithTeacher
from rlcore_grpo.advantage import GroupAdvantage
from rlcore_grpo.config import GroupAdvantageConfig
from rlcore_testing.estimators import EstimatorConformance


class TestConformance(EstimatorConformance):
    scope = "group"

    def columns(self, batch: TrainBatch) -> TrainBatch:
        old_R = batch.per_token["rollout_log_probs"]
        gap_R = 0.1 * torch.arange(len(old_R), dtype=torch.float32)
        return batch.with_columns({Input.OLD_LOG_PROBS: old_R, Input.TEACHER_LOG_PROBS: old_R + gap_R})

    def estimator(self) -> WithTeacher:
        return WithTeacher(GroupAdvantage(GroupAdvantageConfig()), 0.5)
