"""Losses on the same numbers as TRL's (https://github.com/huggingface/trl): same value, same gradient."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore import Correction, Input, KlOptions, Loss, Normalizer, TokenOutputs, TrainBatch
from rlcore.learning.advantages import prepare
from rlcore.learning.objective import Objective
from rlcore_corrections.config import MisConfig, OpsmConfig, TisConfig
from rlcore_corrections.weights import Mis, Opsm, Tis
from rlcore_grpo.config import CispoConfig, GspoConfig, PpoClipConfig, SapoConfig
from rlcore_grpo.loss import Cispo, PpoClip, Sapo
from rlcore_grpo.sequence_loss import Gspo
from rlcore_offline.config import DpoConfig, SftConfig
from rlcore_offline.loss import Dpo, Sft
from rlcore_qwen.tiny import tiny
from rlcore_testing.tensors import responses

pytestmark = pytest.mark.full

LIMIT_S = 240.0
LENGTHS = (4, 6, 1, 5, 3, 6)
LONGEST = 6
LOW, HIGH = 0.75, 1.5


@dataclass(frozen=True)
class Case:
    """rlcore's loss, and the trainer of TRL that has the same one, with its settings."""

    loss: Loss
    trl: dict[str, Any]
    normalizer: Normalizer
    trainer: str = "grpo"
    entropy_coef: float = 0.0
    kl: KlOptions = field(default_factory=KlOptions)
    corrections: tuple[Correction, ...] = ()
    weights: str | None = None
    """TRL's mode of its weights for log-probs of another engine, between `LOW` and `HIGH`."""


def ppo_clip(**settings: float) -> PpoClip:
    return PpoClip(PpoClipConfig.model_validate({"clip_low": 0.2, "clip_high": 0.2, **settings}))


CASES = {
    "grpo": Case(ppo_clip(), {"loss_type": "grpo"}, "per_rollout"),
    "bnpo": Case(ppo_clip(), {"loss_type": "bnpo"}, "per_token"),
    "dapo": Case(ppo_clip(clip_high=0.28), {"loss_type": "dapo", "epsilon_high": 0.28}, "per_token"),
    "dr_grpo": Case(ppo_clip(), {"loss_type": "dr_grpo", "max_completion_length": 9}, "constant"),
    "two_sided": Case(ppo_clip(dual_clip=1.5), {"loss_type": "grpo", "delta": 1.5}, "per_rollout"),
    "gspo": Case(
        Gspo(GspoConfig(clip_low=0.05, clip_high=0.1)),
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 0.05,
            "epsilon_high": 0.1,
        },
        "per_rollout",
    ),
    "cispo": Case(
        Cispo(CispoConfig(clip_high=0.3)), {"loss_type": "cispo", "epsilon_high": 1.3}, "per_token"
    ),
    "sapo": Case(Sapo(SapoConfig()), {"loss_type": "sapo"}, "per_rollout"),
    "kl": Case(
        ppo_clip(),
        {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": False},
        "per_rollout",
        kl=KlOptions(kl_coef=0.3, kl_estimator="k3"),
    ),
    "unbiased_kl": Case(
        ppo_clip(),
        {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": True},
        "per_rollout",
        kl=KlOptions(kl_coef=0.3, kl_estimator="k3", kl_unbiased=True),
    ),
    "entropy": Case(ppo_clip(), {"loss_type": "bnpo", "entropy_coef": 0.1}, "per_token", entropy_coef=0.1),
    "opsm": Case(
        ppo_clip(),
        {"loss_type": "grpo", "off_policy_mask_threshold": 0.05},
        "per_rollout",
        corrections=(Opsm(OpsmConfig(delta=0.05)),),
    ),
    "tis": Case(
        ppo_clip(),
        {"loss_type": "grpo"},
        "per_rollout",
        corrections=(Tis(TisConfig(high=HIGH)),),
        weights="token_truncate",
    ),
    "tis_and_kl": Case(
        ppo_clip(),
        {"loss_type": "bnpo", "beta": 0.3, "use_bias_correction_kl": False},
        "per_token",
        kl=KlOptions(kl_coef=0.3, kl_estimator="k3"),
        corrections=(Tis(TisConfig(high=HIGH)),),
        weights="token_truncate",
    ),
    "mis_of_tokens": Case(
        ppo_clip(),
        {"loss_type": "grpo"},
        "per_rollout",
        corrections=(Mis(MisConfig(mode="mask", low=LOW, high=HIGH)),),
        weights="token_mask",
    ),
    "mis_of_sequences": Case(
        ppo_clip(),
        {"loss_type": "dapo"},
        "per_token",
        corrections=(Mis(MisConfig(level="sequence", mode="mask", low=LOW, high=HIGH)),),
        weights="sequence_mask",
    ),
    "mis_of_sequences_cut": Case(
        ppo_clip(),
        {"loss_type": "dr_grpo", "max_completion_length": 9},
        "constant",
        corrections=(Mis(MisConfig(level="sequence", high=HIGH)),),
        weights="sequence_truncate",
    ),
    "dpo": Case(
        Dpo(DpoConfig(beta=0.3)), {"loss_type": ["sigmoid"], "beta": 0.3}, "per_rollout", trainer="dpo"
    ),
    "dpo_of_means": Case(
        Dpo(DpoConfig(beta=0.3, length_normalized=True)),
        {"loss_type": ["sigmoid_norm"], "beta": 0.3},
        "per_rollout",
        trainer="dpo",
    ),
    "ipo": Case(
        Dpo(DpoConfig(beta=0.3, form="ipo", length_normalized=True)),
        {"loss_type": ["ipo"], "beta": 0.3},
        "per_rollout",
        trainer="dpo",
    ),
    "sft": Case(Sft(SftConfig()), {"loss_type": "nll"}, "per_token", trainer="sft"),
}


def data() -> tuple[TrainBatch, Tensor]:
    """Float64 columns of six samples with uneven lengths and a masked token, and each sample's advantage.

    To `dpo` they are three pairs, the chosen response first. Log-ratios reach ±0.9, so that every clip acts;
    the ratio to the engine is that to the old policy, and to another engine (`engine`) one of up to ±0.6.
    """
    draw, batch = torch.Generator().manual_seed(5), responses(LENGTHS)
    total = sum(LENGTHS)

    def column(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(total, generator=draw, dtype=torch.float64)

    old = column(-3, -1)
    mask = torch.ones(total)
    mask[5] = 0
    columns = {
        "loss_mask": mask,
        "old_log_probs": old,
        "rollout_log_probs": old,
        "new": old + column(-0.9, 0.9),
        "entropy": column(0, 2),
        Input.REFERENCE_LOG_PROBS.value: old + column(-0.5, 0.5),
        "engine": old + column(-0.6, 0.6),
    }
    advantages = torch.tensor([1.0, -1.0, 0.5, -2.0, 1.5, -0.25])
    columns["given"] = advantages[batch.segments]
    rows = torch.arange(len(LENGTHS))
    per_sample = {"rollout": rows, "group": rows // 2, "position": rows, "chosen": 1 - rows % 2}
    return batch.with_columns(columns, per_sample), advantages


class Given:
    """The advantages that the batch holds."""

    def estimate(self, batch: TrainBatch) -> Tensor:
        return batch.per_token["given"]


def trl_weights(mode: str, batch: TrainBatch) -> Tensor:
    """What TRL makes of its own and the engine's log-probs, [R]; `_generate_and_score_completions` has it."""
    columns, segments = batch.per_token, batch.segments
    gap = (columns["old_log_probs"] - columns["engine"]) * columns["loss_mask"]
    level, how = mode.split("_")
    if level == "sequence":
        gap = torch.zeros(len(LENGTHS), dtype=gap.dtype).index_add(0, segments, gap)[segments]
    ratio = gap.exp()
    return ratio.clamp(max=HIGH) if how == "truncate" else ratio.where((ratio >= LOW) & (ratio <= HIGH), 0)


def ours(case: Case, batch: TrainBatch) -> tuple[float, list[Tensor]]:
    """Loss, and gradients [R] in the log-probs and in the entropies."""
    if case.weights is not None:
        batch = batch.with_columns({"rollout_log_probs": batch.per_token["engine"]})
    batch = prepare(batch, Given(), normalizer=case.normalizer, constant=9, minibatches=1)
    leaves = [batch.per_token[name].clone().requires_grad_() for name in ("new", "entropy")]
    objective = Objective(case.loss, case.entropy_coef, corrections=case.corrections, kl=case.kl)
    total = objective(TokenOutputs(log_probs=leaves[0], entropy=leaves[1]), batch).total
    return float(total.detach()), list(torch.autograd.grad(total, leaves, materialize_grads=True))


def padded(column: Tensor, batch: TrainBatch) -> list[list[float]]:
    """[R] to [B, T], zeros behind each response."""
    rows = column.double().split(batch.response_lengths.tolist())
    return [[*row.tolist(), *[0.0] * (LONGEST - len(row))] for row in rows]


def flat(rows: list[list[float]], batch: TrainBatch) -> Tensor:
    """The inverse of `padded`."""
    lengths = batch.response_lengths.tolist()
    kept = [value for row, length in zip(rows, lengths, strict=True) for value in row[:length]]
    return torch.tensor(kept, dtype=torch.float64)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What TRL finds for each case."""
    folder = tmp_path_factory.mktemp("trl")
    tiny(folder / "model")
    batch, advantages = data()
    names = {
        "new": "new",
        "entropy": "entropy",
        "mask": "loss_mask",
        "old": "old_log_probs",
        "reference": Input.REFERENCE_LOG_PROBS.value,
    }
    columns = {name: padded(batch.per_token[column], batch) for name, column in names.items()}
    cases = [
        {
            "trainer": case.trainer,
            "settings": case.trl,
            "columns": columns,
            "advantages": advantages.tolist(),
            **({"weights": padded(trl_weights(case.weights, batch), batch)} if case.weights else {}),
        }
        for case in CASES.values()
    ]
    (folder / "cases.json").write_text(json.dumps(cases))
    script = Path(__file__).with_name("trl_side.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder / "cases.json"), str(folder / "model")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(CASES, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", list(CASES))
def test_loss_and_gradient_are_those_of_trl(theirs: dict[str, Any], name: str) -> None:
    case, (batch, _) = CASES[name], data()
    if case.trainer == "grpo" and not case.kl.kl_coef:
        kept = {key: x for key, x in batch.per_token.items() if key != Input.REFERENCE_LOG_PROBS}
        batch = replace(batch, per_token=kept)
    total, gradients = ours(case, batch)
    assert total == pytest.approx(theirs[name]["loss"], abs=1e-6)
    for found, rows in zip(gradients, theirs[name]["gradients"], strict=True):
        torch.testing.assert_close(found, flat(rows, batch), atol=1e-6, rtol=0)


def test_the_cases_tell_the_losses_apart(theirs: dict[str, Any]) -> None:
    """So that none of them passes for its neighbor."""
    losses = [theirs[name]["loss"] for name in CASES if name != "bnpo"]
    assert len({round(loss, 4) for loss in losses}) == len(losses)
