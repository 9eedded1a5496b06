"""`Learner` over the real trainer, with the parts of GRPO, on one rank and on two."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_ranks import OPTIMIZER, QWEN, start

from rlcore import AdvantageEstimator, Input, LogProbGapError, ModelSpec, TrainBatch
from rlcore.learning.learner import Learner
from rlcore.rollout.batch import even_shares
from rlcore_corrections.batch_weights import ClipCov, TopEntropy
from rlcore_corrections.config import ClipCovConfig, TopEntropyConfig
from rlcore_grpo.advantage import GroupAdvantage
from rlcore_grpo.config import GroupAdvantageConfig, PpoClipConfig
from rlcore_grpo.loss import PpoClip
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.rank import data_rank
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_testing.learners import learner_settings
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import random_batch
from rlcore_testing.trainer_ranks import weights_of

BUDGET = 40
GAP = 6e-5
SECONDS = 240.0


def _learner(role: Role, estimator: AdvantageEstimator, minibatches: int, folder: str) -> Learner:
    return Learner(
        role,
        loss=PpoClip(PpoClipConfig()),
        estimator=estimator,
        corrections=[
            ClipCov(ClipCovConfig(share=0.1, low=0, high=1e6)),
            TopEntropy(TopEntropyConfig(share=0.5)),
        ],
        settings=learner_settings(
            needs=frozenset({Input.OLD_LOG_PROBS, Input.OLD_ENTROPY}),
            minibatches=minibatches,
            normalizer="per_rollout",
            max_response_tokens=12,
            temperature=0.8,
            tokens_per_rank=BUDGET,
            entropy_coef=0.01,
            folder=folder,
        ),
        rank=data_rank(),
    )


def _share(role: Role, gap: float) -> TrainBatch:
    """This rank's part of 12 samples in 4 groups (some without a response), as a rollout would give them.

    The engine's log-probs are the trainer's, but for one token of the whole batch, which is off by `gap`.
    """
    whole = random_batch(12, seed=4)
    whole = replace(
        whole,
        per_token={
            "loss_mask": whole.per_token["loss_mask"],
            "rollout_log_probs": role.forward(whole, temperature=0.8, tokens_per_rank=BUDGET)["log_probs"],
        },
        per_sample={
            "position": torch.arange(12),
            "group": torch.arange(12) // 3,
            "rollout": torch.arange(12),
            "reward": torch.randn(12, generator=torch.Generator().manual_seed(2)),
        },
    )
    whole.per_token["rollout_log_probs"][torch.nonzero(whole.per_token["loss_mask"])[0]] += gap
    return whole.select(even_shares(whole.lengths.tolist(), parallel.data_size())[parallel.data_rank()][::-1])


def _run(rank: int, world: int, port: int, path: str, layout: dict[str, Any], minibatches: int) -> Any:
    parallel.start(rank, world, "127.0.0.1", port, **layout)
    role = Role(ModelSpec(path=path, bridge=QWEN, fields=layout), OPTIMIZER)
    learner = _learner(role, GroupAdvantage(GroupAdvantageConfig()), minibatches, folder=path)
    found = [learner.update(_share(role, GAP), step=step, first=step == 0) for step in range(2)]
    nothing = learner.update(_share(role, GAP).select([]), step=2, first=False)
    weights = weights_of(role)
    try:
        learner.update(_share(role, 1e-3), step=3, first=True)
        error = None
    except LogProbGapError as raised:
        error = str(raised)
    parallel.stop()
    return found, nothing, weights, error


@pytest.fixture(scope="module")
def alone(model: str) -> Any:
    return run_ranks(_run, 1, model, {}, 2, timeout=SECONDS)[0]


@pytest.mark.parametrize("minibatches", [1, 2])
def test_one_rank(model: str, alone: Any, minibatches: int) -> None:
    """The invariants hold on the real trainer: ppo_kl of the first step, and the gap that was put in."""
    found, nothing, _, error = (
        alone if minibatches == 2 else run_ranks(_run, 1, model, {}, 1, timeout=SECONDS)[0]
    )
    first = found[0]
    assert first["train/updates"] == minibatches
    assert first["train/kl_engine_max"] == pytest.approx(GAP, abs=2e-6)
    if minibatches == 1:
        assert first["train/ppo_kl"] == 0
    assert found[1]["train/loss"] != first["train/loss"]
    assert nothing == {"train/tokens": 0.0, "train/samples": 0.0, "train/updates": 0.0}
    assert error is not None
    assert "largest gap 0.001, --max-kl-engine 0.0001" in error


@pytest.mark.grid
@pytest.mark.parametrize(
    "layout",
    [{}, {"pipeline_model_parallel_size": 2}, {"context_parallel_size": 2}],
    ids=["data", "pipeline", "context"],
)
def test_two_ranks_are_as_one(model: str, alone: Any, layout: dict[str, Any]) -> None:
    """Metrics (the same on both ranks), weights and errors; corrections look at the batch of both."""
    found, nothing, weights, _ = alone
    assert 0.4 < found[0]["train/top_entropy_dropped"] < 0.6
    assert found[0]["train/clip_cov_dropped"] > 0
    for metrics, none, mine, error in run_ranks(_run, 2, model, layout, 2, timeout=SECONDS):
        assert none == nothing
        assert error is not None
        assert "disagree" in error
        for step, values in enumerate(metrics):
            assert values.keys() == found[step].keys()
            for name, value in values.items():
                if not name.startswith("time/"):
                    assert value == pytest.approx(found[step][name], rel=1e-4, abs=3e-6), (step, name)
        torch.testing.assert_close(mine, weights, atol=2e-5, rtol=0)


class _Raw:
    """Three times the reward."""

    def estimate(self, batch: TrainBatch) -> torch.Tensor:
        return batch.per_sample["reward"][batch.segments] * 3


def _not_finite(rank: int, world: int, port: int, path: str, folder: str) -> tuple[str, list[str]]:
    start(rank, world, port)
    role = Role(ModelSpec(path=path, bridge=QWEN), OPTIMIZER)
    share = _share(role, 0.0)
    before = weights_of(role)
    learner = _learner(role, _Raw(), 1, folder)
    broken = share.per_sample["reward"].clone()
    if rank == 0:
        broken[0] = 1e38  # finite as an advantage, but not its product with the log-prob
    try:
        learner.update(share.with_columns(per_sample={"reward": broken}), step=5, first=False)
        message = "nothing was raised"
    except ArithmeticError as error:
        message = str(error)
    changed = [name for name, tensor in hf_tensors(role.built) if not torch.equal(tensor, before[name])]
    parallel.stop()
    return message, changed


def test_one_rank_that_is_not_finite_stops_all(model: str, tmp_path: Path) -> None:
    for message, changed in run_ranks(_not_finite, 2, model, str(tmp_path), timeout=SECONDS):
        assert message.startswith("Step 5 was not taken")
        assert not changed
    assert [path.name for path in tmp_path.iterdir()] == ["not_finite_step_5.safetensors"]
