"""The loss keeps what rlcore promises of losses of a critic, and is what is worked out by hand."""

import torch
from rlcore import Part, ValueInputs, ValueLoss
from rlcore_testing.tensors import close, f64, responses
from rlcore_testing.value_losses import ValueLossConformance

from rlcore_my_plugin.config import MyPluginConfig
from rlcore_my_plugin.value_loss import MyPlugin


class TestMyPlugin(ValueLossConformance):
    part = Part(
        name="my_plugin",
        factory="rlcore_my_plugin.value_loss:MyPlugin",
        config=MyPluginConfig(),
    )


def test_it_is_a_square_near_the_return_and_a_line_far_from_it() -> None:
    """Errors 0.5, 1 and -3 with delta 1: 0.25, 1 and 2 · 3 - 1, with slopes 2e and ± 2 · delta."""
    values_R = f64(0.5, 1.0, -3.0).requires_grad_()
    inputs = ValueInputs(
        values=values_R,
        old_values=torch.zeros_like(values_R),
        returns=torch.zeros_like(values_R),
        mask=torch.ones_like(values_R),
        batch=responses([3]),
    )
    loss: ValueLoss = MyPlugin(MyPluginConfig(delta=1.0))
    found = loss(inputs)
    close(found.per_token, 0.25, 1.0, 5.0)
    assert found.metrics["far"].tolist() == [False, False, True]
    [slope_R] = torch.autograd.grad(found.per_token.sum(), values_R)
    close(slope_R, 1.0, 2.0, -2.0)
