"""The loss `sft` against the cross-entropy of torch; the recipe."""

import subprocess
import sys

import pytest
import torch
from torch.nn.functional import cross_entropy

from rlcore.api.batch import TrainBatch
from rlcore.api.inputs import TrainsOn
from rlcore.api.maths import Normalizer
from rlcore.api.records import Algorithm, Kind
from rlcore.api.trainer import TokenOutputs
from rlcore.learning.objective import Objective
from rlcore.learning.preparation import prepare
from rlcore.plugins.loader import Switches, load
from rlcore_sft import plugin
from rlcore_sft.config import SftConfig
from rlcore_sft.loss import Sft
from rlcore_testing.losses import LossConformance

VOCABULARY = 7
RESPONSES = (3, 1, 4)


def _batch(mask: list[float]) -> TrainBatch:
    responses = torch.tensor(RESPONSES)
    return TrainBatch(
        tokens=torch.zeros(int(responses.sum()) + 3, dtype=torch.int64),
        prompt_lengths=torch.ones(3, dtype=torch.int64),
        response_lengths=responses,
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


def test_the_recipe_names_what_is_there() -> None:
    [recipe] = plugin.rlcore_algorithms()
    assert isinstance(recipe, Algorithm)
    assert recipe.trains_on is TrainsOn.RESPONSES
    found = load(Switches()).registry.find(Kind.LOSS, str(recipe.parts["loss"]), "")
    assert found.component.config is SftConfig


def test_the_plugin_module_imports_little() -> None:
    code = (
        "import sys, rlcore_sft.plugin; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'ray', 'megatron', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
