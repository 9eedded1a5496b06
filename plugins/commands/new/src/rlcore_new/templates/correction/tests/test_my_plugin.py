"""The correction keeps what rlcore promises of corrections, and weighs as worked out by hand."""

import math

import torch
from rlcore import Correction, CorrectionInputs, Part
from rlcore_testing.corrections import CorrectionConformance
from rlcore_testing.tensors import NAN, close, f64, responses

from rlcore_my_plugin.config import MyPluginConfig
from rlcore_my_plugin.correction import MyPlugin


class TestMyPlugin(CorrectionConformance):
    part = Part(
        name="my_plugin",
        factory="rlcore_my_plugin.correction:MyPlugin",
        config=MyPluginConfig(),
    )


def test_a_gap_costs_weight_in_either_direction() -> None:
    """Log-ratios 0, log 2 and -log 2 with rate 2: weights 1, 1/4 and 1/4; a masked NaN does no harm."""
    engine_R = f64(-1.0, -1.0 - math.log(2), -1.0 + math.log(2), NAN)
    inputs = CorrectionInputs(
        log_probs=torch.full((4,), -1.0),
        old_log_probs=torch.full((4,), -1.0),
        rollout_log_probs=engine_R,
        advantages=torch.ones(4),
        mask=torch.tensor([1.0, 1.0, 1.0, 0.0]),
        segments=torch.zeros(4, dtype=torch.int64),
        samples=1,
        batch=responses([4]),
    )
    correction: Correction = MyPlugin(MyPluginConfig(rate=2))
    found = correction.weigh(inputs)
    close(found.weights[:3], 1.0, 0.25, 0.25)
    assert found.weights.isfinite().all()
