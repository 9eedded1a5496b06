"""A policy that learns from a teacher: what each form changes, and the same under every layout."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_ranks import OPTIMIZER, QWEN, share_of, start, untimed

from rlcore import Config, Input, ModelSpec, TrainBatch
from rlcore.learning.learner import Learner
from rlcore_grpo.config import PpoClipConfig
from rlcore_grpo.loss import PpoClip
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.rank import data_rank
from rlcore_megatron.mcore.role.role import Role
from rlcore_opd.advantage import Zero
from rlcore_opd.config import DistillConfig
from rlcore_opd.loss import Distill
from rlcore_testing.learners import learner_settings
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import VOCAB_SIZE, make_qwen3, random_batch

BUDGET = 60
SECONDS = 240.0
SETTINGS: dict[str, Any] = dict(
    minibatches=1,
    normalizer="per_token",
    max_response_tokens=12,
    temperature=0.8,
    tokens_per_rank=BUDGET,
    max_kl_engine=1e9,  # no engine has made these batches
    needs=DistillConfig.needs,
)
FORMS = {
    "sampled": DistillConfig(),
    "teacher": DistillConfig(top_k=5),
    "student": DistillConfig(top_k=5, top_of="student"),
    "whole": DistillConfig(top_k=VOCAB_SIZE),
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "pipeline": {"pipeline_model_parallel_size": 2},
    "context": {"context_parallel_size": 2},
    "data": {},
}


def _batch(seed: int) -> TrainBatch:
    batch = random_batch(12, seed)
    zero = torch.zeros_like(batch.per_token["loss_mask"])
    mask = batch.per_token["loss_mask"]
    return replace(
        batch,
        per_token={"loss_mask": mask, "rollout_log_probs": zero, "rewards": zero},
        per_sample={
            "position": torch.arange(12),
            "group": torch.arange(12) // 2,
            "rollout": torch.arange(12),
            "reward": torch.zeros(12),
        },
    )


def _spec(path: str, megatron: dict[str, Any]) -> ModelSpec:
    return ModelSpec(path=path, bridge=QWEN, fields=megatron)


def _learner(policy: Role, teacher: Role, form: DistillConfig, **changes: Any) -> Learner:
    return Learner(
        policy,
        loss=Distill(form),
        estimator=Zero(Config()),
        settings=learner_settings(**{**SETTINGS, "top_tokens": form.top_tokens, **changes}),
        teacher=teacher,
        rank=data_rank(),
    )


def _run(rank: int, world: int, port: int, path: str, other: str, megatron: dict[str, Any]) -> Any:
    start(rank, world, port, megatron)
    teacher = Role(_spec(other, megatron), None)
    found: dict[str, list[dict[str, float]]] = {}
    for name, form in FORMS.items():
        learner = _learner(Role(_spec(path, megatron), OPTIMIZER), teacher, form, minibatches=2)
        found[name] = [
            untimed(learner.update(share_of(_batch(seed)), step=step, first=False))
            for step, seed in ((1, 4), (2, 5))
        ]
    parallel.stop()
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A student, and a teacher that is deeper."""
    folder = tmp_path_factory.mktemp("models")
    return str(make_qwen3(folder / "student")), str(make_qwen3(folder / "teacher", num_hidden_layers=4))


@pytest.fixture(scope="module")
def alone(models: tuple[str, str]) -> Any:
    return run_ranks(_run, 1, *models, {}, timeout=SECONDS)[0]


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks_are_as_one(models: tuple[str, str], alone: Any, layout: str) -> None:
    for found in run_ranks(_run, 2, *models, LAYOUTS[layout], timeout=SECONDS):
        for name, steps in alone.items():
            for step, expected in enumerate(steps):
                assert found[name][step].keys() == expected.keys()
                assert found[name][step] == pytest.approx(expected, rel=1e-3, abs=3e-5), (name, step)


def test_what_each_form_measures(alone: Any) -> None:
    for name, steps in alone.items():
        for metrics in steps:
            assert metrics["train/kl_teacher"] != 0
            assert metrics["train/advantage_std"] == 0
            assert ("train/top_mass" in metrics) == (name != "sampled")
    first = {name: steps[0] for name, steps in alone.items()}
    assert first["whole"]["train/top_mass"] == pytest.approx(1.0, abs=1e-5)
    for name in ("teacher", "student"):
        assert 0 < first[name]["train/kl_teacher_top"] < first["whole"]["train/kl_teacher_top"]
    assert first["teacher"]["train/top_mass"] < first["student"]["train/top_mass"]
    loss, kl = (first["whole"][f"train/{name}"] for name in ("loss", "kl_teacher_top"))
    assert loss == pytest.approx(kl, rel=0.02), "the mean of two mini-batches, and that of their tokens"


def _on_one_rank(rank: int, world: int, port: int, path: str, other: str, folder: str) -> bool:
    start(rank, world, port)
    student, teacher = _spec(path, {}), Role(_spec(other, {}), None)
    _check_itself(student)
    _check_learning(student, teacher, Path(folder))
    _check_coefficient(student, teacher)
    parallel.stop()
    return True


def _check_itself(student: ModelSpec) -> None:
    """A student that is its own teacher has a KL of exactly 0, and no form has a slope."""
    for name, form in FORMS.items():
        policy = Role(student, OPTIMIZER)
        metrics = _learner(policy, Role(student, None), form).update(_batch(4), step=1, first=False)
        assert metrics["train/kl_teacher"] == 0, name
        assert metrics["train/loss"] == pytest.approx(0, abs=1e-6), name
        assert metrics["train/grad_norm"] == pytest.approx(0, abs=1e-5), name
        assert ("time/old_log_probs_s" in metrics) == (name == "student"), name


def _check_learning(student: ModelSpec, teacher: Role, folder: Path) -> None:
    """The exact KL falls, and a frozen role reads a checkpoint with an optimizer: the trained policy's."""
    policy, form = Role(student, OPTIMIZER), FORMS["whole"]
    learner = _learner(policy, teacher, form)
    kl = [learner.update(_batch(4), step=step, first=False)["train/loss"] for step in range(1, 13)]
    assert kl[-1] < 0.7 * kl[0]
    policy.save(folder / "policy")
    frozen = Role(student, None)
    state = torch.get_rng_state()
    frozen.load(folder / "policy")
    assert torch.equal(torch.get_rng_state(), state), "a frozen role draws nothing"
    metrics = _learner(policy, frozen, FORMS["sampled"]).update(_batch(4), step=1, first=False)
    assert metrics["train/kl_teacher"] == 0


class _Ones:
    def estimate(self, batch: TrainBatch) -> torch.Tensor:
        return batch.per_token["loss_mask"]


def _check_coefficient(student: ModelSpec, teacher: Role) -> None:
    """`distill_coef`: the teacher's KL comes off the advantages of whatever estimates them."""
    needs = frozenset({Input.TEACHER_LOG_PROBS, Input.OLD_LOG_PROBS})
    settings = learner_settings(**{**SETTINGS, "needs": needs, "distill_coef": 0.5})
    learner = Learner(
        Role(student, OPTIMIZER),
        loss=PpoClip(PpoClipConfig()),
        estimator=_Ones(),
        settings=settings,
        teacher=teacher,
        rank=data_rank(),
    )
    metrics = learner.update(_batch(4), step=1, first=False)
    assert abs(metrics["train/kl_teacher"]) > 1e-3
    expected = 1 - 0.5 * metrics["train/kl_teacher"]
    assert metrics["train/advantage_mean"] == pytest.approx(expected, abs=1e-5)


def test_on_one_rank(models: tuple[str, str], tmp_path: Path) -> None:
    assert run_ranks(_on_one_rank, 1, *models, str(tmp_path), timeout=SECONDS) == [True]
