"""`kl_cov` against numbers worked out by hand, in float64 (https://arxiv.org/abs/2505.22617)."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlcore import RunConfig
from rlcore.learning.advantages import with_batch_columns
from rlcore_grpo.config import KlCovConfig
from rlcore_grpo.loss import KlCov
from rlcore_testing.losses import LossConformance
from rlcore_testing.tensors import f64, gradient, loss_inputs, responses
from rlcore_toolkit import advantage_covariance

OLD, ADVANTAGES = f64(-1, -2, -3, -4, -100), f64(1, 0.5, -0.5, -1.0, 50)
"""Of four live tokens, whose means are -2.5 and 0: covariances 1.5 .25 .25 1.5; and one that is not live."""

MASK = f64(1, 1, 1, 1, 0)


def test_the_covariance_is_over_live_tokens() -> None:
    assert advantage_covariance(OLD, ADVANTAGES, MASK).tolist() == [1.5, 0.25, 0.25, 1.5, 0]


@pytest.mark.parametrize(
    ("share", "penalized"),
    [
        (0.5, [1, 0, 0, 1, 0]),
        (1.0, [1, 1, 1, 1, 0]),
        (1e-3, [1, 0, 0, 0, 0]),
        (0.75, [1, 1, 0, 1, 0]),
        (0.4, [1, 0, 0, 0, 0]),
    ],
)
def test_the_tokens_of_the_largest_covariance_are_penalized(share: float, penalized: list[float]) -> None:
    columns = {"old_log_probs": OLD, "advantages": ADVANTAGES, "loss_mask": MASK}
    batch = responses([2, 3]).with_columns(per_token=columns)
    found = with_batch_columns(batch, [KlCov(KlCovConfig(share=share))])
    assert found.per_token["kl_cov_penalized"].tolist() == penalized


def test_the_penalty_is_the_distance_of_the_log_probs() -> None:
    """log r = .1, -.2, .2, -.1: -r A, and .5 |log r| more on the first and the last."""
    new = (OLD + f64(0.1, -0.2, 0.2, -0.1, 0)).requires_grad_()
    inputs = loss_inputs(new, OLD, ADVANTAGES, mask=MASK)
    penalized = {"kl_cov_penalized": f64(1, 0, 0, 1, 0), "kl_cov_covariance": f64(0, 0, 0, 0, 0)}
    settings: dict[str, Any] = {"coef": 0.5}
    output = KlCov(KlCovConfig(**settings))(
        replace(inputs, batch=inputs.batch.with_columns(per_token=penalized))
    )
    expected = [-math.exp(0.1) + 0.05, -0.5 * math.exp(-0.2), 0.5 * math.exp(0.2), math.exp(-0.1) + 0.05]
    torch.testing.assert_close(output.per_token[:4], f64(*expected))
    torch.testing.assert_close(
        gradient(output, new)[:4],
        f64(-math.exp(0.1) + 0.5, -0.5 * math.exp(-0.2), 0.5 * math.exp(0.2), math.exp(-0.1) - 0.5),
    )


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [({}, True), ({"minibatches": 2}, False), ({"old_log_probs": "rollout"}, False)],
)
def test_a_penalty_without_a_gradient_is_refused(settings: dict[str, Any], is_refused: bool) -> None:
    said = list(KlCovConfig().complaints("kl_cov", RunConfig.of(**settings), []))
    assert bool(said) == is_refused


class TestKlCov(LossConformance):
    def loss(self) -> KlCov:
        return KlCov(KlCovConfig(share=0.3))
