"""Every bundled loss under tensor- and data-parallel ranks: loss, metrics and gradient of one rank."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcore.config.base import Config
from rlcore.data.batch import TrainBatch
from rlcore.interfaces import Loss
from rlcore.maths import Normalizer
from rlcore.megatron import parallel
from rlcore.megatron.packing import balance
from rlcore.megatron.role import Role
from rlcore.megatron.step import StepResult
from rlcore.megatron.weights import hf_tensors
from rlcore.objective import Objective, prepare
from rlcore.settings import OptimizerSettings
from rlcore.spec import ModelSpec, Part
from rlcore.testing.ranks import run_ranks
from rlcore.testing.tiny import make_qwen3, random_batch
from rlcore_cispo.config import CispoConfig
from rlcore_cispo.loss import Cispo
from rlcore_grpo.config import PpoClipConfig
from rlcore_grpo.loss import PpoClip
from rlcore_gspo.config import GspoConfig
from rlcore_gspo.loss import Gspo
from rlcore_qwen.config import QwenConfig
from rlcore_reinforce.loss import Reinforce
from rlcore_sapo.config import SapoConfig
from rlcore_sapo.loss import Sapo

LOSSES: dict[str, tuple[Loss, Normalizer]] = {
    "ppo_clip": (PpoClip(PpoClipConfig(dual_clip=1.3)), "per_token"),
    "gspo": (Gspo(GspoConfig(clip_low=0.05, clip_high=0.05)), "per_rollout"),
    "cispo": (Cispo(CispoConfig(clip_low=0.2, clip_high=0.2)), "per_token"),
    "sapo": (Sapo(SapoConfig()), "per_rollout"),
    "reinforce": (Reinforce(Config()), "constant"),
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tensor": (2, {"tensor_model_parallel_size": 2}),
    "data": (2, {}),
    "data of four": (4, {}),
}
# No momentum, and an eps that dwarfs every gradient: a step moves a weight by lr / eps times its gradient.
SETTINGS = OptimizerSettings(lr=0.2, adam_beta1=0.0, adam_eps=1.0, clip_grad=0.0)
SECONDS = 240.0

Arrays = dict[str, NDArray[np.float32]]


class _Given:
    """The advantages that the batch holds."""

    def estimate(self, batch: TrainBatch) -> Tensor:
        return batch.per_token["advantages"]


def _share(role: Role, normalizer: Normalizer, seed: int) -> TrainBatch:
    """This rank's part of nine samples; the policy has moved by log-ratios up to ±0.6 from the old one."""
    whole = random_batch(9, seed=seed)
    moved = (
        1.2 * torch.rand(int(whole.response_lengths.sum()), generator=torch.Generator().manual_seed(seed))
        - 0.6
    )
    rows = torch.arange(9)
    whole = whole.with_columns({"rollout_log_probs": moved}, {"rollout": rows})
    whole = prepare(whole, _Given(), normalizer=normalizer, constant=12, minibatches=1)
    part = whole.select(balance(whole.lengths.tolist(), parallel.data_size())[parallel.data_rank()])
    new = role.forward(part, temperature=0.8, tokens_per_rank=30)["log_probs"]
    old = new - part.per_token["rollout_log_probs"]
    return part.with_columns({"old_log_probs": old, "rollout_log_probs": old})


def _weights(role: Role) -> Arrays:
    return {name: tensor.numpy().copy() for name, tensor in hf_tensors(role.built)}


def _run(
    rank: int, world: int, port: int, path: str, layout: dict[str, Any]
) -> dict[str, tuple[StepResult, Arrays]]:
    """For each loss the step, and what it changed in each weight."""
    parallel.start(rank, world, "127.0.0.1", port, **layout)
    part = Part(name="qwen", factory="rlcore_qwen.bridge:QwenBridge", config=QwenConfig())
    role = Role(ModelSpec(path=path, bridge=part, megatron=layout), SETTINGS)
    found = {}
    for seed, (name, (loss, normalizer)) in enumerate(LOSSES.items()):
        before = _weights(role)
        result = role.train(
            _share(role, normalizer, seed), Objective(loss), temperature=0.8, tokens_per_rank=30
        )
        found[name] = (result, {key: array - before[key] for key, array in _weights(role).items()})
    parallel.stop()
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_qwen3(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def alone(model: str) -> dict[str, tuple[StepResult, Arrays]]:
    found: dict[str, tuple[StepResult, Arrays]] = run_ranks(_run, 1, model, {}, timeout=SECONDS)[0]
    return found


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_each_loss_is_that_of_one_rank(model: str, alone: Any, layout: str) -> None:
    world, settings = LAYOUTS[layout]
    for found in run_ranks(_run, world, model, settings, timeout=SECONDS):
        for name, (expected, moves) in alone.items():
            result, moved = found[name]
            assert result.loss == pytest.approx(expected.loss, rel=1e-4, abs=1e-6), name
            assert result.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4), name
            assert result.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-5), name
            for key, move in moves.items():
                gap, size = np.linalg.norm(moved[key] - move), np.linalg.norm(move)
                assert gap <= 1e-3 * size + 1e-7, f"{name}: the gradient of {key} differs by {gap:.3g}"


def test_the_losses_have_gradients(alone: dict[str, tuple[StepResult, Arrays]]) -> None:
    """Where the clips act on some tokens, not on all."""
    for name, (result, moves) in alone.items():
        assert result.grad_norm > 1e-3, name
        assert all(np.linalg.norm(move) > 0 for move in moves.values()), name
        clipped = result.metrics.get("clip_fraction")
        assert clipped is None or 0 < clipped < result.metrics["tokens"], name
