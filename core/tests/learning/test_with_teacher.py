"""Advantages with a teacher's KL in them keep an estimator's promises; a sample without a score has none."""

import pytest
import torch

from rlcore import AdvantageEstimator, AdvantageOutput, Input, TrainBatch
from rlcore.learning.advantages import WithTeacher, prepare
from rlcore_grpo.advantage import GroupAdvantage
from rlcore_grpo.config import GroupAdvantageConfig
from rlcore_testing.estimators import EstimatorConformance
from rlcore_testing.tensors import responses


class TestConformance(EstimatorConformance):
    scope = "group"

    def columns(self, batch: TrainBatch) -> TrainBatch:
        old_R = batch.per_token["rollout_log_probs"]
        gap_R = 0.1 * torch.arange(len(old_R), dtype=torch.float32)
        return batch.with_columns({Input.OLD_LOG_PROBS: old_R, Input.TEACHER_LOG_PROBS: old_R + gap_R})

    def estimator(self) -> WithTeacher:
        return WithTeacher(GroupAdvantage(GroupAdvantageConfig()), 0.5)


@pytest.mark.parametrize(
    ("whiten", "expected"), [(False, [0, 0.5774, -1.1547, 0.5774]), (True, [0, 0.5774, -1.1547, 0.5774])]
)
def test_a_sample_without_a_score_is_in_no_mean_and_no_deviation(whiten: bool, expected: list[float]) -> None:
    """As TRL 1.16 has it for a group with the rewards None, 1, 0, 1."""
    ones = torch.ones(4, dtype=torch.int64)
    batch = TrainBatch(
        tokens=torch.arange(8),
        prompt_lengths=ones,
        response_lengths=ones,
        per_token={"loss_mask": torch.ones(4)},
        per_sample={
            "reward": torch.tensor([0.0, 1.0, 0.0, 1.0]),
            "scored": torch.tensor([0, 1, 1, 1]),
            "group": 0 * ones,
            "rollout": torch.arange(4),
        },
    )
    estimator = GroupAdvantage(GroupAdvantageConfig())
    prepared = prepare(
        batch, estimator, normalizer="per_token", constant=1, minibatches=1, whiten_advantages=whiten
    )
    assert prepared.per_token["advantages"].tolist() == pytest.approx(expected, abs=1e-3)
    assert prepared.per_token["weights"].tolist() == [0.25] * 4


class _Fixed:
    def __init__(self, output: torch.Tensor | AdvantageOutput) -> None:
        self._output = output

    def estimate(self, batch: TrainBatch) -> torch.Tensor | AdvantageOutput:
        return self._output


def test_the_kl_is_taken_from_the_advantages() -> None:
    """A - coef · (old - teacher); returns are left alone."""
    batch = responses([2]).with_columns(
        per_token={
            "loss_mask": torch.tensor([1.0, 1.0]),
            Input.OLD_LOG_PROBS: torch.tensor([-1.0, -2.0]),
            Input.TEACHER_LOG_PROBS: torch.tensor([-3.0, -0.5]),
        },
    )
    advantages, expected = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.75])
    plain: AdvantageEstimator = WithTeacher(_Fixed(advantages), 0.5)
    found = plain.estimate(batch)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, expected)
    output = AdvantageOutput(advantages=advantages, returns=advantages)
    both = WithTeacher(_Fixed(output), 0.5).estimate(batch)
    assert isinstance(both, AdvantageOutput)
    torch.testing.assert_close(both.advantages, expected)
    torch.testing.assert_close(both.returns, advantages)
