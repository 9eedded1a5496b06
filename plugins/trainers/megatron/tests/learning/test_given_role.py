"""Given responses through the real trainer: against transformers, and under every split of the batch."""

from typing import Any

import pytest
import torch
from megatron_ranks import OPTIMIZER, QWEN, start

from rlcore import Group, Input, Loss, ModelSpec, Prompt, TrainBatch
from rlcore.learning.learner import Learner
from rlcore.learning.maths import Normalizer
from rlcore.rollout.batch import split, to_batch
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.rank import data_rank
from rlcore_megatron.mcore.role.role import Role
from rlcore_offline.config import DpoConfig, SftConfig
from rlcore_offline.loss import Dpo, Sft
from rlcore_testing.learners import learner_settings
from rlcore_testing.ranks import run_ranks
from rlcore_testing.samples import sample_of
from rlcore_testing.tiny import VOCAB_SIZE, make_qwen3
from rlcore_testing.trainer_ranks import weights_of

NORMALIZERS: dict[str, Normalizer] = {"sft": "per_token", "dpo": "per_rollout"}
SECONDS = 240.0
BETA = 0.3


def _batch(name: str, minibatches: int) -> TrainBatch:
    """6 prompts with one response each, or with two; some tokens are not trained on."""
    draw = torch.Generator().manual_seed(5)

    def ids(longest: int) -> tuple[int, ...]:
        count = int(torch.randint(1, longest + 1, (), generator=draw))
        return tuple(torch.randint(0, VOCAB_SIZE, (count,), generator=draw).tolist())

    groups = []
    for number in range(6):
        prompt, asked = Prompt(prompt_id=str(number), text="x"), ids(7)
        samples = []
        for index in range(1 if name == "sft" else 2):
            answer = ids(9)
            kept = torch.rand(len(answer), generator=draw) < 0.7
            samples.append(
                sample_of(
                    answer,
                    prompt=prompt,
                    prompt_ids=asked,
                    group_id=number,
                    index=index,
                    loss_mask=(1, *kept[1:].int().tolist()),
                )
            )
        groups.append(Group(group_id=number, prompt=prompt, samples=tuple(samples)))
    return to_batch(groups, minibatches=minibatches, version=0)


def _run(
    rank: int, world: int, port: int, paths: tuple[str, str], name: str, minibatches: int, budget: int
) -> Any:
    """Metrics of two steps, and the weights after them."""
    start(rank, world, port)
    role = Role(ModelSpec(path=paths[0], bridge=QWEN), OPTIMIZER)
    reference = Role(ModelSpec(path=paths[1], bridge=QWEN), None) if name == "dpo" else None
    loss: Loss = Sft(SftConfig()) if name == "sft" else Dpo(DpoConfig(beta=BETA))
    settings = learner_settings(
        minibatches=minibatches,
        normalizer=NORMALIZERS[name],
        max_response_tokens=9,
        temperature=1.0,
        tokens_per_rank=budget,
        sampled=False,
        needs=frozenset({Input.REFERENCE_LOG_PROBS}) if reference else frozenset(),
        folder=paths[0],
    )
    learner = Learner(
        role, loss=loss, estimator=None, settings=settings, reference=reference, rank=data_rank()
    )
    share = split(_batch(name, minibatches), parallel.data_size())[parallel.data_rank()]
    found = [learner.update(share, step=step, first=step == 1) for step in (1, 2)]
    weights = weights_of(role)
    parallel.stop()
    return found, weights


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A policy and a reference that differ."""
    folder = tmp_path_factory.mktemp("models")
    other = make_qwen3(folder / "reference", initializer_range=0.15)
    return str(make_qwen3(folder / "policy")), str(other)


@pytest.fixture(scope="module")
def alone(models: tuple[str, str]) -> dict[tuple[str, int], Any]:
    """One rank and one micro-batch, by loss and mini-batches."""
    cases = [("sft", 1), ("dpo", 1), ("dpo", 2)]
    return {case: run_ranks(_run, 1, models, *case, 1000, timeout=SECONDS)[0] for case in cases}


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "minibatches", "ranks", "budget"),
    [("sft", 1, 2, 1000), ("dpo", 2, 2, 1000), ("dpo", 1, 2, 34), ("dpo", 1, 1, 34)],
)
def test_no_split_shows(
    models: tuple[str, str],
    alone: dict[tuple[str, int], Any],
    name: str,
    minibatches: int,
    ranks: int,
    budget: int,
) -> None:
    """Metrics and weights after two steps; a budget of one pair, and pairs over ranks and mini-batches."""
    expected, weights = alone[name, minibatches]
    for found, mine in run_ranks(_run, ranks, models, name, minibatches, budget, timeout=SECONDS):
        for step, metrics in enumerate(found):
            assert metrics.keys() == expected[step].keys()
            for key, value in metrics.items():
                if not key.startswith("time/"):
                    assert value == pytest.approx(expected[step][key], rel=1e-4, abs=3e-6), (step, key)
        torch.testing.assert_close(mine, weights, atol=2e-5, rtol=0)


def _transformers(path: str, name: str, reference: str) -> tuple[float, float, dict[str, float]]:
    """Loss, gradient norm and rewards by transformers and autograd, sample by sample, in float64."""
    from transformers import AutoModelForCausalLM

    policy, frozen = (
        AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64).eval()
        for directory in (path, reference)
    )
    batch = _batch(name, 1)
    live = torch.split(batch.per_token["loss_mask"], batch.response_lengths.tolist())
    sums, counts, ratios = [], 0.0, []
    start = 0
    for row, mask in enumerate(live):
        prompt, length = int(batch.prompt_lengths[row]), int(batch.lengths[row])
        ids = batch.tokens[start : start + length][None]
        start += length
        found = [_log_probs(model, ids)[prompt - 1 :] * mask for model in (policy, frozen)]
        sums.append(found[0].sum())
        counts += float(mask.sum())
        ratios.append((found[0] - found[1].detach()).sum())
    rewards = {}
    if name == "sft":
        loss = -torch.stack(sums).sum() / counts
    else:
        chosen, rejected = torch.stack(ratios[0::2]) * BETA, torch.stack(ratios[1::2]) * BETA
        loss = -torch.nn.functional.logsigmoid(chosen - rejected).mean()
        rewards = {
            "train/reward_chosen": float(chosen.mean().detach()),
            "train/reward_rejected": float(rejected.mean().detach()),
            "train/reward_margin": float((chosen - rejected).mean().detach()),
            "train/accuracy": float((chosen > rejected).double().mean()),
        }
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in policy.parameters() if p.grad is not None]).norm()
    return float(loss.detach()), float(norm), rewards


def _log_probs(model: Any, ids: torch.Tensor) -> torch.Tensor:
    rows = torch.log_softmax(model(ids).logits[0, :-1], -1)
    return rows.gather(1, ids[0, 1:, None])[:, 0]


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_the_first_step_is_that_of_transformers(
    models: tuple[str, str], alone: dict[tuple[str, int], Any], name: str
) -> None:
    first = alone[name, 1][0][0]
    loss, norm, rewards = _transformers(models[0], name, models[1])
    assert first["train/loss"] == pytest.approx(loss, rel=1e-5)
    assert first["train/grad_norm"] == pytest.approx(norm, rel=1e-4)
    for key, value in rewards.items():
        assert first[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key
    assert not {"train/ppo_kl", "train/kl_engine", "train/advantage_mean"} & first.keys()


def test_pairs_stay_together() -> None:
    """Over ranks and over mini-batches, in pairs of uneven length."""
    batch = _batch("dpo", 2)
    for ranks in (2, 3):
        for share in split(batch, ranks):
            group = share.per_sample["group"].tolist()
            assert all(group.count(number) == 2 for number in group)
