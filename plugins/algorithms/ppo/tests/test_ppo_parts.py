"""`gae` and `clipped` against numbers worked out by hand; the recipe.

Sources: https://arxiv.org/abs/1506.02438 (equation 16), https://arxiv.org/abs/2005.12729 (section 3).
"""

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rlcore import Input, TrainBatch, ValueInputs
from rlcore_ppo.advantage import Gae
from rlcore_ppo.config import ClippedConfig, GaeConfig
from rlcore_ppo.value_loss import Clipped
from rlcore_testing.estimators import EstimatorConformance
from rlcore_testing.tensors import NAN, f64, responses


def batch_of(rewards: list[float], values: list[float], mask: list[float]) -> TrainBatch:
    return responses([len(rewards)]).with_columns(
        per_token={
            "rewards": torch.tensor(rewards),
            Input.VALUES: torch.tensor(values),
            "loss_mask": torch.tensor(mask),
        },
    )


@pytest.mark.parametrize(
    ("gamma", "lam", "returns"),
    [
        (1, 1, [6, 5, 3]),
        (0.5, 1, [2.75, 3.5, 3]),
        (1, 0.5, [3.625, 4.25, 3]),
        (0.5, 0.5, [2.03125, 3.125, 3]),
    ],
)
def test_gae(gamma: float, lam: float, returns: list[float]) -> None:
    """A reward on each token; advantage = return - value."""
    values = [0.5, 1.0, 1.5]
    found = Gae(GaeConfig(gamma=gamma, lam=lam)).estimate(batch_of([1, 2, 3], values, [1, 1, 1]))
    assert found.returns.tolist() == returns
    torch.testing.assert_close(found.advantages, torch.tensor(returns) - torch.tensor(values))
    assert found.advantages.dtype == found.returns.dtype == torch.float32


def test_gae_of_one_step_and_a_terminal_reward() -> None:
    found = Gae(GaeConfig(gamma=1, lam=0)).estimate(batch_of([0, 0, 5], [1, 2, 3], [1, 1, 1]))
    assert found.advantages.tolist() == [1, 1, 2]


class TestGae(EstimatorConformance):
    scope = "sample"

    def estimator(self) -> Gae:
        return Gae(GaeConfig(gamma=0.9, lam=0.8))

    def columns(self, batch: TrainBatch) -> TrainBatch:
        mask = batch.per_token["loss_mask"]
        values = torch.rand(len(mask), generator=torch.Generator().manual_seed(0))
        return batch.with_columns({Input.VALUES: torch.where(mask > 0, values, NAN)})


def value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    inputs = ValueInputs(
        values=values,
        old_values=old,
        returns=returns,
        mask=torch.ones_like(values),
        batch=batch_of([0.0] * len(values), [0.0] * len(values), [1.0] * len(values)),
    )
    output = Clipped(ClippedConfig(clip=clip))(inputs)
    slope = torch.autograd.grad(output.per_token.sum(), values)[0]
    if clip is not None:
        assert torch.equal(output.metrics["clip_fraction"], slope == 0)
    return output.per_token.detach(), slope


def test_clipped_value_loss() -> None:
    """Old value 0, return 1. Inside the band; above it, where the clipped error is larger; below it."""
    values = f64(0.1, 0.5, -0.5).requires_grad_()
    loss, slope = value_loss(values, f64(0, 0, 0), f64(1, 1, 1), 0.2)
    torch.testing.assert_close(loss, f64(0.81, 0.64, 2.25))
    torch.testing.assert_close(slope, f64(-1.8, 0, -3.0))


def test_value_loss_that_is_free() -> None:
    values = f64(0.1, 0.5, -0.5).requires_grad_()
    loss, slope = value_loss(values, f64(0, 0, 0), f64(1, 1, 1), None)
    torch.testing.assert_close(loss, f64(0.81, 0.25, 2.25))
    torch.testing.assert_close(slope, f64(-1.8, -1.0, -3.0))


def test_settings() -> None:
    assert GaeConfig().needs == {Input.VALUES}
    for wrong in ({"gamma": 1.1}, {"lam": -0.1}, {"gama": 1}):
        with pytest.raises(ValidationError):
            GaeConfig.model_validate(wrong)
    with pytest.raises(ValidationError):
        ClippedConfig(clip=0)
