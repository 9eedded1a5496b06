"""The estimator keeps what rlcore promises of estimators, and computes what is worked out by hand."""

from typing import ClassVar, Literal

import torch
from rlcore import AdvantageEstimator
from rlcore_testing.estimators import EstimatorConformance
from rlcore_testing.tensors import responses

from rlcore_my_plugin.advantage import MyPlugin
from rlcore_my_plugin.config import MyPluginConfig


class TestMyPlugin(EstimatorConformance):
    scope: ClassVar[Literal["sample", "group", "batch"]] = "group"
    shift_invariant = True

    def estimator(self) -> AdvantageEstimator:
        return MyPlugin(MyPluginConfig())


def test_the_median_of_a_group_has_no_advantage() -> None:
    batch = responses([1, 2, 1]).with_columns(
        per_sample={"reward": torch.tensor([0.0, 1.0, 4.0]), "group": torch.tensor([0, 0, 0])}
    )
    found = MyPlugin(MyPluginConfig(scale=2)).estimate(batch)
    assert found.tolist() == [-2.0, 0.0, 0.0, 6.0]
