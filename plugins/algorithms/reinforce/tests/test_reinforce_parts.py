"""Loss, recipes and settings of the plugin."""

import pytest
import torch
from pydantic import ValidationError

from rlcore import Config, RunConfig, TokenOutputs
from rlcore.learning.advantages import prepare
from rlcore.learning.objective import Objective
from rlcore_reinforce import plugin
from rlcore_reinforce.advantage import LeaveOneOut
from rlcore_reinforce.config import ReinforceConfig, ReinforcePlusPlusConfig, SiblingsConfig
from rlcore_reinforce.loss import Reinforce
from rlcore_testing.losses import LossConformance
from rlcore_testing.tensors import f64, gradient, loss_inputs, responses


@pytest.mark.parametrize("old", [[-0.5, -1.0, -1.5], [-3.0, -0.1, 2.0]])
def test_loss(old: list[float]) -> None:
    """-A log p (https://doi.org/10.1007/BF00992696): mean .8333, gradient -A, whatever the old log-probs."""
    new = f64(-0.5, -1, -1.5).requires_grad_()
    output = Reinforce(Config())(loss_inputs(new, f64(*old), f64(1, -1, 2)))
    torch.testing.assert_close(output.per_token, f64(0.5, -1, 3))
    assert output.per_token.mean().item() == pytest.approx(0.8333, abs=1e-4)
    torch.testing.assert_close(gradient(output, new), f64(-1, 1, -2))


class TestConformance(LossConformance):
    def loss(self) -> Reinforce:
        return Reinforce(Config())


def test_recipe_rloo_is_the_gradient_of_the_sum_over_tokens() -> None:
    """Rollouts of 1 and 3 tokens with rewards 1 and 0: A = 1 and -1, weight 1 / (8 * 2) for every token.

    A mean over each rollout's tokens would give the second one's tokens a third of it.
    """
    mask = torch.tensor([1.0, 1, 0, 1, 1])
    batch = responses([1, 4]).with_columns(
        per_token={"loss_mask": mask, "rollout_log_probs": -mask, "rewards": torch.zeros(5)},
        per_sample={
            "reward": torch.tensor([1.0, 0.0]),
            "group": torch.tensor([0, 0]),
            "rollout": torch.tensor([0, 1]),
        },
    )
    settings = next(r for r in plugin.rlcore_algorithms() if r.name == "rloo").settings
    run = RunConfig.of(**settings)
    prepared = prepare(
        batch, LeaveOneOut(SiblingsConfig()), normalizer=run.loss.normalizer, constant=8, minibatches=1
    )
    log_probs = (-torch.ones(5)).requires_grad_()
    result = Objective(Reinforce(Config()))(TokenOutputs(log_probs=log_probs, entropy=None), prepared)
    slope = torch.autograd.grad(result.total, log_probs)[0]
    torch.testing.assert_close(slope * 16, torch.tensor([-1.0, 1, 0, 1, 1]))


@pytest.mark.parametrize(
    ("config", "bad"),
    [
        (ReinforceConfig, {"gamma": -0.1}),
        (ReinforceConfig, {"gamma": 1.1}),
        (ReinforceConfig, {"lam": 1}),
        (ReinforcePlusPlusConfig, {"gamma": 2}),
        (ReinforcePlusPlusConfig, {"baseline": True}),
        (SiblingsConfig, {"gamma": 1}),
    ],
)
def test_settings_out_of_bounds_are_refused(config: type[Config], bad: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        config.model_validate(bad)
