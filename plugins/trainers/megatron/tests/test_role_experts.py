"""Steps of a model with experts under every layout, and its checkpoints from one layout to another."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_ranks import share_of

from rlcore import ModelSpec, OptimizerSettings, Part
from rlcore_megatron.fields import split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_experts, policy_loss, random_batch
from rlcore_testing.trainer_ranks import weights_of

# eps well above the noise of tiny gradients, whose sign Adam would otherwise blow up to a whole step
SETTINGS = OptimizerSettings(lr=1e-2, adam_eps=1e-4, clip_grad=0.5, total_steps=4)
TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
EXPERT = {"expert_model_parallel_size": 2}
CUT = {"expert_tensor_parallel_size": 2}
BALANCED = {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor, expert": {**TENSOR, **EXPERT},
    "pipeline": {"pipeline_model_parallel_size": 2},
    "data": {},
    "expert": EXPERT,
    "expert, unsharded": {**EXPERT, "use_distributed_optimizer": False},
    "tensor": TENSOR,
    "cut": CUT,
    "tensor, cut, unsharded": {**TENSOR, **CUT, "use_distributed_optimizer": False},
    "expert, cut": {**EXPERT, **CUT},
}
FEW = 3
"""With so few samples an expert gets no token now and then, and a rank no sample."""


def _start(rank: int, world: int, port: int, path: str, megatron: dict[str, Any]) -> Role:
    megatron = {**megatron, **BALANCED}
    parallel.start(rank, world, "127.0.0.1", port, timeout=60.0, **split(megatron).layout)
    part = Part(name="glm4_moe", factory="rlcore_glm.moe:GlmMoeBridge")
    return Role(ModelSpec(path=path, bridge=part, fields=megatron), SETTINGS)


def _step(role: Role, seed: int) -> Any:
    batch = random_batch(9 if seed == 0 else FEW, seed)
    share = share_of(batch)
    scores = role.forward(share, temperature=0.8, tokens_per_rank=30)["log_probs"]
    step = role.train(share, policy_loss, temperature=0.8, tokens_per_rank=30)
    return step, float(scores.double().square().sum())


def _trained(rank: int, world: int, port: int, path: str, folder: str, megatron: dict[str, Any]) -> Any:
    """Two steps, saved, and one more."""
    role = _start(rank, world, port, path, megatron)
    steps = [_step(role, seed) for seed in (0, 1)]
    role.save(Path(folder))
    weights = weights_of(role)
    steps.append(_step(role, 2))
    parallel.stop()
    return steps, weights


def _continued(rank: int, world: int, port: int, path: str, folder: str, megatron: dict[str, Any]) -> Any:
    """The step after what `folder` holds."""
    role = _start(rank, world, port, path, megatron)
    _step(role, 9)  # what was there before must not show through
    role.load(Path(folder))
    weights = weights_of(role)
    step = _step(role, 2)
    parallel.stop()
    return step, weights


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_experts(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def alone(model: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_ranks(_trained, 1, model, str(tmp_path_factory.mktemp("saved") / "alone"), {})[0]


def _sum_of_squares(results: list[Any], index: int, megatron: dict[str, Any]) -> float:
    """Of all log-probs of a step, whoever scored them."""
    shares: list[float] = [steps[index][1] for steps, _ in results]
    is_data_parallel = not {"tensor_model_parallel_size", "pipeline_model_parallel_size"} & megatron.keys()
    return sum(shares) if is_data_parallel else shares[0]


@pytest.mark.grid
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts_agree(model: str, alone: Any, tmp_path: Path, layout: str) -> None:
    ranks = 4 if LAYOUTS[layout].items() >= {**EXPERT, **CUT}.items() else 2
    results = run_ranks(_trained, ranks, model, str(tmp_path / "saved"), LAYOUTS[layout])
    steps, weights = alone
    for index, (expected, scores) in enumerate(steps):
        tolerance = 1e-3 if index else 1e-5
        assert _sum_of_squares(results, index, LAYOUTS[layout]) == pytest.approx(scores, rel=tolerance)
        for found, _ in results:
            step = found[index][0]
            assert step == results[0][0][index][0], "every rank reports the same"
            assert step.loss == pytest.approx(expected.loss, rel=tolerance, abs=1e-6)
            assert step.grad_norm == pytest.approx(expected.grad_norm, rel=tolerance)
            assert step.extras == pytest.approx(expected.extras, rel=tolerance)
    for _, found in results:
        torch.testing.assert_close(found, weights, atol=2e-4, rtol=0)


@pytest.mark.full
@pytest.mark.parametrize(
    ("saved", "others"),
    [
        (EXPERT, ((1, {}), (2, EXPERT), (2, {**TENSOR, **EXPERT}))),
        (TENSOR, ((2, EXPERT), (2, CUT))),
        (CUT, ((1, {}), (2, {**TENSOR, **EXPERT}))),
    ],
    ids=["expert", "tensor", "cut"],
)
def test_a_checkpoint_of_one_layout_goes_on_under_another(
    model: str, tmp_path: Path, saved: dict[str, Any], others: Sequence[tuple[int, dict[str, Any]]]
) -> None:
    folder = str(tmp_path / "saved")
    steps, weights = run_ranks(_trained, 2, model, folder, saved)[0]
    for ranks, megatron in others:
        step, loaded = run_ranks(_continued, ranks, model, folder, megatron)[0]
        torch.testing.assert_close(loaded, weights, atol=0, rtol=0)
        expected = steps[-1][0]
        assert step[0].loss == pytest.approx(expected.loss, rel=1e-5, abs=1e-7), megatron
        assert step[0].grad_norm == pytest.approx(expected.grad_norm, rel=1e-5), megatron
