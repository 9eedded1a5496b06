"""Losses, corrections, the KL term and the value loss under tensor- and data-parallel ranks.

Loss, metrics and gradient are those of one rank. Behind the mask every column of the batch is NaN.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from megatron_ranks import QWEN
from numpy.typing import NDArray
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import TEACHER_TOP_LOG_PROBS, TOP_IDS, Input
from rlcore.api.config import Config
from rlcore.api.optimizer import OptimizerSettings
from rlcore.api.part import ModelSpec
from rlcore.api.run_config import KlOptions
from rlcore.api.trainer import StepResult
from rlcore.api.training import Correction, Loss
from rlcore.learning.advantages import prepare
from rlcore.learning.critic import ValueObjective, with_value_weights
from rlcore.learning.maths import Normalizer
from rlcore.learning.objective import Objective
from rlcore.rollout.batch import even_shares
from rlcore_corrections.config import DecoupledConfig, IcePopConfig, MisConfig, OpsmConfig, TisConfig
from rlcore_corrections.weights import Decoupled, IcePop, Mis, Opsm, Tis
from rlcore_grpo.config import CispoConfig, GspoConfig, PpoClipConfig, SapoConfig
from rlcore_grpo.loss import Cispo, PpoClip, Sapo
from rlcore_grpo.sequence_loss import Gspo
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.critic import Critic
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_offline.config import DpoConfig, SftConfig
from rlcore_offline.loss import Dpo, Sft
from rlcore_opd.config import DistillConfig
from rlcore_opd.loss import Distill
from rlcore_ppo.config import ClippedConfig
from rlcore_ppo.value_loss import Clipped
from rlcore_reinforce.loss import Reinforce
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import VOCAB_SIZE, make_qwen3, random_batch


@dataclass(frozen=True)
class Case:
    """A loss with what stands around it. `pairs`: two samples after each other are a unit."""

    loss: Loss
    normalizer: Normalizer
    corrections: tuple[Correction, ...] = ()
    kl: KlOptions = field(default_factory=KlOptions)
    pairs: bool = False
    chosen: str | None = None


CORRECTIONS: dict[str, Correction] = {
    "tis": Tis(TisConfig(low=0.9, high=1.1)),
    "mis of sequences": Mis(MisConfig(level="sequence", high=1.2)),
    "mis of geometric means": Mis(MisConfig(level="geometric", mode="mask", high=1.1)),
    "mis with a veto": Mis(MisConfig(mode="clip", high=1.1, veto=0.8)),
    "icepop": IcePop(IcePopConfig(low=0.9, high=1.1)),
    "opsm": Opsm(OpsmConfig(delta=0.01)),
    "decoupled": Decoupled(DecoupledConfig(cap=1.1)),
}
CASES: dict[str, Case] = {
    "ppo_clip": Case(PpoClip(PpoClipConfig(clip_high=0.2, dual_clip=1.3)), "per_token"),
    "gspo": Case(Gspo(GspoConfig(clip_low=0.05, clip_high=0.05)), "per_rollout"),
    "cispo": Case(Cispo(CispoConfig(clip_low=0.2, clip_high=0.2)), "per_token"),
    "sapo": Case(Sapo(SapoConfig()), "per_rollout"),
    "reinforce": Case(Reinforce(Config()), "constant"),
    "sft": Case(Sft(SftConfig()), "per_token"),
    "dpo": Case(Dpo(DpoConfig(beta=0.5)), "per_rollout", pairs=True),
    "distill": Case(Distill(DistillConfig()), "per_token"),
    "distill of top tokens": Case(Distill(DistillConfig(top_k=4)), "per_token", chosen=TOP_IDS),
    "a KL term": Case(
        PpoClip(PpoClipConfig()),
        "per_rollout",
        kl=KlOptions(kl_coef=0.5, kl_estimator="k3", kl_unbiased=True),
    ),
    **{
        name: Case(PpoClip(PpoClipConfig()), "per_rollout", corrections=(correction,))
        for name, correction in CORRECTIONS.items()
    },
}
VALUE_LOSS = "the value loss"
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tensor": (2, {"tensor_model_parallel_size": 2}),
    "data": (2, {}),
    "data of four": (4, {}),
}
# No momentum, and an eps that dwarfs every gradient: a step moves a weight by lr / eps times its gradient.
SETTINGS = OptimizerSettings(lr=0.2, adam_beta1=0.0, adam_eps=1.0, clip_grad=0.0)
SAMPLES, BUDGET, TEMPERATURE = 10, 40, 0.8
SECONDS = 240.0

Arrays = dict[str, NDArray[np.float32]]
Found = dict[str, tuple[StepResult, Arrays]]


class _Given:
    """The advantages that the batch holds."""

    def estimate(self, batch: TrainBatch) -> Tensor:
        return batch.per_token["advantages"]


def _share(normalizer: Normalizer, seed: int, *, pairs: bool = False) -> TrainBatch:
    """This rank's part of ten samples, with random columns, which are the same under every layout.

    What a column holds behind the mask is NaN, the mask and the weights apart.
    """
    whole, draw = random_batch(SAMPLES, seed=seed), torch.Generator().manual_seed(seed)
    tokens, rows = int(whole.response_lengths.sum()), torch.arange(SAMPLES)
    hidden = whole.per_token["loss_mask"] == 0

    def column(low: float, high: float) -> Tensor:
        return (low + (high - low) * torch.rand(tokens, generator=draw)).masked_fill(hidden, torch.nan)

    first = torch.randint(0, VOCAB_SIZE, (tokens, 1), generator=draw)
    whole = whole.with_columns(
        {
            "moved": column(-0.6, 0.6),
            "apart": column(-0.3, 0.3),
            "returns": column(-1, 1),
            TOP_IDS: (first + torch.tensor([0, 7, 20, 41])) % VOCAB_SIZE,
            TEACHER_TOP_LOG_PROBS: torch.stack([column(-5, -2) for _ in range(4)], 1),
            "advantages": whole.per_token["advantages"].masked_fill(hidden, torch.nan),
            "rollout_log_probs": column(0, 0),
        },
        {"rollout": rows, "chosen": 1 - rows % 2, **({"unit": rows // 2} if pairs else {})},
    )
    whole = prepare(whole, _Given(), normalizer=normalizer, constant=12, minibatches=1)
    whole, units = with_value_weights(whole), whole.units()
    lengths = [int(whole.lengths[unit].sum()) for unit in units]
    mine = even_shares(lengths, parallel.data_size())[parallel.data_rank()]
    return whole.select([row for place in mine for row in units[place]])


def _policy_share(role: Role, case: Case, seed: int) -> TrainBatch:
    """The policy has moved by log-ratios up to ±0.6 from the old one, and so on."""
    part = _share(case.normalizer, seed, pairs=case.pairs)
    new = role.forward(part, temperature=TEMPERATURE, tokens_per_rank=BUDGET)["log_probs"]
    old, apart = new - part.per_token["moved"], part.per_token["apart"]
    return part.with_columns(
        {
            "old_log_probs": old,
            "rollout_log_probs": old - apart,
            Input.REFERENCE_LOG_PROBS: new + 2 * apart,
            Input.TEACHER_LOG_PROBS: old - 2 * apart,
        }
    )


def _value_step(critic: Critic) -> StepResult:
    """Values have moved by up to ±0.6 from the old ones."""
    part = _share("per_token", len(CASES))
    values = critic.values(part, tokens_per_rank=BUDGET)
    part = part.with_columns({Input.VALUES: values - part.per_token["moved"]})
    return critic.fit(part, ValueObjective(Clipped(ClippedConfig(clip=0.2))), tokens_per_rank=BUDGET)


def _weights(role: Role) -> Arrays:
    return {name: tensor.numpy().copy() for name, tensor in hf_tensors(role.built)}


def _moves(role: Role, before: Mapping[str, NDArray[np.float32]]) -> Arrays:
    return {key: array - before[key] for key, array in _weights(role).items()}


def _run(rank: int, world: int, port: int, path: str, headed: str, layout: dict[str, Any]) -> Found:
    """For each case the step, and what it changed in each weight."""
    parallel.start(rank, world, "127.0.0.1", port, **layout)
    role = Role(ModelSpec(path=path, bridge=QWEN, fields=layout), SETTINGS)
    found = {}
    for seed, (name, case) in enumerate(CASES.items()):
        before = _weights(role)
        result = role.train(
            _policy_share(role, case, seed),
            Objective(case.loss, corrections=case.corrections, kl=case.kl),
            temperature=TEMPERATURE,
            tokens_per_rank=BUDGET,
            chosen=case.chosen,
        )
        found[name] = (result, _moves(role, before))
    critic = Critic(ModelSpec(path=headed, bridge=QWEN, fields=layout), SETTINGS)
    before = _weights(critic)
    found[VALUE_LOSS] = (_value_step(critic), _moves(critic, before))
    parallel.stop()
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A model, and the same with a value head that is not 0."""
    folder = tmp_path_factory.mktemp("models")
    plain, headed = make_qwen3(folder / "plain"), make_qwen3(folder / "headed")
    file = headed / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    width = tensors["model.norm.weight"].numel()
    tensors["score.weight"] = 0.1 * torch.randn(1, width, generator=torch.Generator().manual_seed(1))
    safetensors.torch.save_file(tensors, file)
    return str(plain), str(headed)


@pytest.fixture(scope="module")
def alone(models: tuple[str, str]) -> Found:
    found: Found = run_ranks(_run, 1, *models, {}, timeout=SECONDS)[0]
    return found


@pytest.mark.full
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_each_loss_is_that_of_one_rank(models: tuple[str, str], alone: Found, layout: str) -> None:
    world, settings = LAYOUTS[layout]
    for found in run_ranks(_run, world, *models, settings, timeout=SECONDS):
        assert found.keys() == alone.keys()
        for name, (expected, moves) in alone.items():
            result, moved = found[name]
            assert result.loss == pytest.approx(expected.loss, rel=1e-4, abs=1e-6), name
            assert result.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4), name
            assert result.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-5), name
            for key, move in moves.items():
                gap, size = np.linalg.norm(moved[key] - move), np.linalg.norm(move)
                assert gap <= 1e-3 * size + 1e-7, f"{name}: the gradient of {key} differs by {gap:.3g}"


def test_the_losses_have_gradients(alone: Found) -> None:
    """Where clips and masks act on some tokens, not on all."""
    for name, (result, moves) in alone.items():
        assert result.grad_norm > 1e-3, name
        assert all(np.linalg.norm(move) > 0 for move in moves.values()), name
        clipped = result.metrics.get("clip_fraction")
        assert clipped is None or 0 < clipped < result.metrics["tokens"], name
    assert "clip_fraction" in alone[VALUE_LOSS][0].metrics
    assert alone["a KL term"][0].metrics["kl_reference"] > 0


@pytest.mark.parametrize("name", list(CORRECTIONS))
def test_the_corrections_act_on_some_tokens(alone: Found, name: str) -> None:
    found = alone[name][0].metrics
    acting = ("_below", "_above", "_dropped", "_vetoed")
    touched = {key: value for key, value in found.items() if key.endswith(acting)}
    assert 0 < max(touched.values()) < found["tokens"], touched
    if "veto" in name:
        assert found["mis_vetoed"] > 0
