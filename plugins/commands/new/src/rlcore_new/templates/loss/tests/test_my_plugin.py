"""The loss keeps what rlcore promises of losses, and computes what is worked out by hand."""

import math

import torch
from rlcore import Loss
from rlcore_testing.losses import LossConformance
from rlcore_testing.tensors import loss_inputs

from rlcore_my_plugin.config import MyPluginConfig
from rlcore_my_plugin.loss import MyPlugin


class TestMyPlugin(LossConformance):
    def loss(self) -> Loss:
        return MyPlugin(MyPluginConfig(ceiling=1.5))


def test_a_ratio_above_the_ceiling_counts_as_the_ceiling() -> None:
    new_R = torch.tensor([math.log(3.0), math.log(1.5), 0.0])
    inputs = loss_inputs(new_R, torch.zeros(3), torch.tensor([1.0, 1.0, -2.0]))
    found = MyPlugin(MyPluginConfig(ceiling=2))(inputs)
    torch.testing.assert_close(found.per_token, torch.tensor([-2.0, -1.5, 2.0]))
    assert found.metrics["at_ceiling"].tolist() == [1.0, 0.0, 0.0]
