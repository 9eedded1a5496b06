"""The loss `sft` against the cross-entropy of torch."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from rlcore import Normalizer, TokenOutputs, TrainBatch
from rlcore.learning.advantages import prepare
from rlcore.learning.objective import Objective
from rlcore_offline.config import SftConfig
from rlcore_offline.loss import Sft
from rlcore_testing.losses import LossConformance
from rlcore_testing.tensors import responses

VOCABULARY = 7
RESPONSES = (3, 1, 4)


def _batch(mask: list[float]) -> TrainBatch:
    return responses(RESPONSES).with_columns(
        per_token={"loss_mask": torch.tensor(mask)},
        per_sample={"position": torch.arange(3), "group": torch.arange(3), "rollout": torch.arange(3)},
    )


def test_loss_and_gradient_are_those_of_the_cross_entropy_over_live_tokens() -> None:
    """In float64; tokens under the mask have no gradient, whatever they hold."""
    mask = [1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    batch = prepare(_batch(mask), None, normalizer="per_token", constant=1, minibatches=1)
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(8, VOCABULARY, dtype=torch.float64, generator=draw).requires_grad_()
    labels = torch.randint(0, VOCABULARY, (8,), generator=draw)
    log_probs = torch.log_softmax(logits, -1)[torch.arange(8), labels]
    log_probs = torch.where(torch.tensor(mask) > 0, log_probs, torch.nan)
    result = Objective(Sft(SftConfig()))(TokenOutputs(log_probs=log_probs), batch)
    (gradient,) = torch.autograd.grad(result.total, logits)
    ignored = torch.where(torch.tensor(mask) > 0, labels, -100)
    expected = cross_entropy(logits, ignored, ignore_index=-100)
    (wanted,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(result.total, expected, atol=1e-7, rtol=0)
    torch.testing.assert_close(gradient, wanted, atol=1e-7, rtol=0)
    assert set(result.metrics) == {"tokens"}, "what compares with an engine has nothing to compare"


def test_the_normalizer_decides_whether_samples_or_tokens_count_alike() -> None:
    log_probs = -torch.tensor([1.0, 1.0, 1.0, 5.0, 2.0, 2.0, 2.0, 2.0])
    expected: dict[Normalizer, float] = {"per_token": (3 + 5 + 8) / 8, "per_rollout": (1 + 5 + 2) / 3}
    for normalizer, value in expected.items():
        batch = prepare(_batch([1.0] * 8), None, normalizer=normalizer, constant=1, minibatches=1)
        total = Objective(Sft(SftConfig()))(TokenOutputs(log_probs=log_probs), batch).total
        assert float(total) == pytest.approx(value, abs=1e-6)


class TestConformance(LossConformance):
    policy_gradient = False
    ratio = False

    def loss(self) -> Sft:
        return Sft(SftConfig())
