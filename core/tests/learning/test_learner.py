"""`Learner` on one process, over a small policy in plain torch: what it trains on, reports and refuses."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import Input
from rlcore.api.errors import LogProbGapError, NotFiniteError, RunError
from rlcore.api.trainer import LossResult, StepResult, TokenOutputs
from rlcore.api.training import Correction, CorrectionInputs, LossInputs, LossOutput, TokenWeights
from rlcore.learning.forwards import Forwards
from rlcore.learning.learner import Learner
from rlcore.learning.maths import importance_ratio, masked_mean
from rlcore.learning.metrics import METRICS
from rlcore.learning.policies import PolicyLearners
from rlcore.learning.settings import LearnerSettings
from rlcore_testing.learners import learner_settings
from rlcore_toolkit import group_advantages

VOCAB = 7


class Bigram:
    """A bigram model: logits of the next token by the last one. Plain gradient descent."""

    def __init__(self, lr: float = 0.5) -> None:
        generator = torch.Generator().manual_seed(3)
        self.table = nn.Parameter(torch.randn(VOCAB, VOCAB, generator=generator))
        self.optimizer = torch.optim.SGD([self.table], lr=lr)
        self.noise = (0.0, 0.0)
        self.forwards = 0

    def outputs(self, batch: TrainBatch, temperature: float) -> TokenOutputs:
        ends = torch.cumsum(batch.lengths, 0)
        offset = torch.repeat_interleave(
            ends - torch.cumsum(batch.response_lengths, 0), batch.response_lengths
        )
        rows = torch.arange(len(offset)) + offset
        log_p = torch.log_softmax(self.table[batch.tokens[rows - 1]] / temperature, -1)
        log_probs = log_p.gather(1, batch.tokens[rows, None])[:, 0]
        return TokenOutputs(log_probs=log_probs, entropy=-(log_p.exp() * log_p).sum(-1))

    def forward(
        self,
        batch: TrainBatch,
        *,
        temperature: float,
        tokens_per_rank: int,
        entropy: bool = False,
        top: int = 0,
        chosen: str | None = None,
    ) -> dict[str, Tensor]:
        self.forwards += 1
        outputs = self.outputs(batch, temperature)
        found = outputs.log_probs.detach()
        found[0::2] += self.noise[0]
        found[1::2] += self.noise[1]
        assert outputs.entropy is not None
        return {"log_probs": found, **({"entropy": outputs.entropy.detach()} if entropy else {})}

    def train(
        self,
        batch: TrainBatch,
        loss: Callable[[TokenOutputs, TrainBatch], LossResult],
        *,
        temperature: float,
        tokens_per_rank: int,
        entropy: bool = False,
        entropy_grad: bool = False,
        chosen: str | None = None,
    ) -> StepResult:
        self.optimizer.zero_grad()
        result = loss(self.outputs(batch, temperature), batch)
        (gradient,) = torch.autograd.grad(result.total, [self.table])
        self.table.grad = gradient
        norm, total = float(gradient.norm()), float(result.total.detach())
        finite = math.isfinite(norm) and math.isfinite(total)
        if finite:
            self.optimizer.step()
        return StepResult(
            loss=total,
            metrics={name: float(value) for name, value in result.metrics.items()},
            grad_norm=norm,
            lr=0.5,
            finite=finite,
        )


class GroupRelative:
    def estimate(self, batch: TrainBatch) -> Tensor:
        reward, group = batch.per_sample["reward"], batch.per_sample["group"]
        return group_advantages(reward, group, std=True)[batch.segments]


def clipped(inputs: LossInputs) -> LossOutput:
    ratio = importance_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask)
    a = inputs.advantages
    plain, bounded = -ratio * a, -ratio.clamp(0.8, 1.2) * a
    return LossOutput(per_token=torch.maximum(plain, bounded), metrics={"clip_fraction": bounded > plain})


def make_batch(policy: Bigram, temperature: float = 0.8) -> TrainBatch:
    """24 samples in 6 groups; the reward is the share of the token 3; log-probs as of an engine."""
    generator = torch.Generator().manual_seed(1)
    n, prompt, response = 24, 2, 5
    tokens = torch.randint(VOCAB, (n, prompt + response), generator=generator)
    mask = (torch.rand(n, response, generator=generator) > 0.2).float()
    batch = TrainBatch(
        tokens=tokens.flatten(),
        prompt_lengths=torch.full((n,), prompt),
        response_lengths=torch.full((n,), response),
        per_token={"loss_mask": mask.flatten()},
        per_sample={
            "position": torch.arange(n),
            "group": torch.arange(n) // 4,
            "rollout": torch.arange(n),
            "reward": (tokens[:, prompt:] == 3).float().mean(1),
        },
    )
    engine = policy.outputs(batch, temperature).log_probs.detach()
    return batch.with_columns(per_token={"rollout_log_probs": engine})


def make_settings(folder: Path, **changes: Any) -> LearnerSettings:
    plain = {"max_response_tokens": 5, "temperature": 0.8, "tokens_per_rank": 1000, "folder": str(folder)}
    return learner_settings(**{**plain, **changes})


def make_learner(policy: Bigram, folder: Path, loss: Any = clipped, **changes: Any) -> Learner:
    settings = make_settings(folder, **changes)
    return Learner(policy, loss=loss, estimator=GroupRelative(), settings=settings)


@pytest.mark.parametrize("minibatches", [1, 3])
def test_update_trains_and_reports(minibatches: int, tmp_path: Path) -> None:
    policy = Bigram()
    batch = make_batch(policy)
    live = batch.per_token["loss_mask"].sum().item()
    learner = make_learner(policy, tmp_path, minibatches=minibatches)
    before = policy.table.detach().clone()
    metrics = learner.update(batch, step=0, first=True)
    assert not torch.equal(policy.table, before)
    assert policy.forwards == (0 if minibatches == 1 else minibatches)
    expected = set(METRICS) | {"train/clip_fraction"}
    assert set(metrics) == (expected if minibatches > 1 else expected - {"time/old_log_probs_s"})
    assert all(isinstance(value, float) and math.isfinite(value) for value in metrics.values())
    assert metrics["train/tokens"] == live
    assert metrics["train/samples"] == 24
    assert metrics["train/updates"] == minibatches
    assert metrics["train/lr"] == 0.5
    assert metrics["train/kl_engine_max"] <= 1e-6
    assert metrics["train/kl_engine_comparable"] == 1
    if minibatches == 1:
        assert metrics["train/ppo_kl"] == 0
        assert metrics["train/clip_fraction"] == 0
    else:
        assert metrics["train/ppo_kl"] != 0
    assert not list(tmp_path.iterdir())


def test_update_makes_rewarded_tokens_likely(tmp_path: Path) -> None:
    policy = Bigram(lr=5.0)
    batch = make_batch(policy)
    learner = make_learner(policy, tmp_path)
    before = policy.table.softmax(1)[:, 3].mean().item()
    for step in range(20):
        learner.update(batch, step=step, first=False)
    assert policy.table.softmax(1)[:, 3].mean().item() > before + 0.05


def test_each_policy_learns_from_its_own_samples(tmp_path: Path) -> None:
    """As if there were no others: siblings of another policy change no baseline and no denominator."""
    together = [Bigram(), Bigram(), Bigram()]
    batch = make_batch(together[0]).with_columns(per_sample={"policy": torch.arange(24) % 3 % 2})
    learners = (make_learner(policy, tmp_path, minibatches=2) for policy in together)
    all_of_them = PolicyLearners(dict(zip(("", "other", "idle"), learners, strict=True)))
    metrics = all_of_them.update(batch, step=0, first=True, keep=True)
    columns = all_of_them.take_columns()
    assert columns.keys() == {"", "other"}
    for number, place in ((0, "train"), (1, "policy.other")):
        rows = (batch.per_sample["policy"] == number).nonzero().flatten().tolist()
        alone = Bigram()
        found = make_learner(alone, tmp_path, minibatches=2).update(batch.select(rows), step=0, first=True)
        assert torch.equal(alone.table, together[number].table)
        names = [name for name in found if name.startswith("train/")]
        assert {name: found[name] for name in names} == {
            name: metrics[f"{place}/{name.removeprefix('train/')}"] for name in names
        }
        assert found["train/updates"] == 2
        assert len(columns["other" if number else ""]["advantages"]) == 5 * len(rows)
    assert metrics["policy.idle/updates"] == metrics["policy.idle/samples"] == 0
    assert torch.equal(together[2].table, Bigram().table)


def test_order_of_the_local_batch_does_not_matter(tmp_path: Path) -> None:
    """By position the batch is the same; so are mini-batches, metrics and weights."""
    straight, shuffled = Bigram(), Bigram()
    batch = make_batch(straight)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0)).tolist()
    one = make_learner(straight, tmp_path, minibatches=3).update(batch, step=0, first=True)
    two = make_learner(shuffled, tmp_path, minibatches=3).update(batch.select(order), step=0, first=True)
    torch.testing.assert_close(straight.table, shuffled.table)
    for name in one:
        if not name.startswith("time/"):
            assert two[name] == pytest.approx(one[name], abs=1e-6), name


def test_what_is_kept_of_the_tokens_and_changes_nothing(tmp_path: Path) -> None:
    policies = [Bigram(), Bigram()]
    learners = [make_learner(policy, tmp_path, minibatches=2) for policy in policies]
    batch = make_batch(policies[0])
    rows = list(range(len(batch)))[::-1]  # a rank's share comes in any order
    before = policies[0].outputs(batch, 0.8).log_probs.detach()
    plain = learners[0].update(batch.select(rows), step=1, first=True)
    assert learners[0].take_columns() == {}
    kept = learners[1].update(batch.select(rows), step=1, first=True, keep=True)
    assert {k: v for k, v in kept.items() if k[:4] != "time"} == {
        k: v for k, v in plain.items() if k[:4] != "time"
    }
    columns = learners[1].take_columns()
    mask = batch.per_token["loss_mask"]
    ratio = torch.exp(columns["trained_log_probs"] - torch.where(mask > 0, before, 0))
    half = int(batch.response_lengths[: len(batch) // 2].sum())
    assert torch.allclose(ratio[:half], torch.ones(half), atol=1e-6), "the first mini-batch"
    assert (ratio[half:] - 1)[mask[half:] > 0].abs().max() > 1e-3, "the second, after an optimizer step"
    assert torch.equal(columns["advantages"], GroupRelative().estimate(batch) * mask)
    assert learners[1].take_columns() == {}


def test_one_minibatch_per_rollout_at_most(tmp_path: Path) -> None:
    policy = Bigram()
    metrics = make_learner(policy, tmp_path, minibatches=4).update(
        make_batch(policy).select([0, 1]), step=0, first=True
    )
    assert metrics["train/updates"] == 2


@pytest.mark.parametrize("rows", [[], [0, 1]])
def test_nothing_to_train_on(rows: list[int], tmp_path: Path) -> None:
    """No sample, or samples without a live token: no update, and the metrics say so."""
    policy = Bigram()
    batch = make_batch(policy).select(rows)
    batch = batch.with_columns(per_token={"loss_mask": torch.zeros_like(batch.per_token["loss_mask"])})
    before = policy.table.detach().clone()
    metrics = make_learner(policy, tmp_path, minibatches=2).update(batch, step=0, first=True)
    assert metrics == {"train/tokens": 0.0, "train/samples": float(len(rows)), "train/updates": 0.0}
    assert torch.equal(policy.table, before)


def with_gap(batch: TrainBatch, gap: float, tokens: int) -> TrainBatch:
    """The first live `tokens` log-probs of the engine shifted by `gap`."""
    engine = batch.per_token["rollout_log_probs"].clone()
    engine[torch.nonzero(batch.per_token["loss_mask"])[:tokens, 0]] += gap
    return batch.with_columns(per_token={"rollout_log_probs": engine})


@pytest.mark.parametrize("minibatches", [1, 3])
def test_gap_to_the_engine_is_refused_in_fp32(minibatches: int, tmp_path: Path) -> None:
    """One token of the first mini-batch is enough. Only on the first step; later it is a metric."""
    policy = Bigram()
    learner = make_learner(policy, tmp_path, minibatches=minibatches)
    bad = with_gap(make_batch(policy), 3e-4, 1)
    message = r"largest gap 0\.0003, --max-kl-engine 0\.0001 \(mean .*\); the batch is in .*\.$"
    with pytest.raises(LogProbGapError, match=message):
        learner.update(bad, step=0, first=True)
    kept = safetensors.torch.load_file(tmp_path / "log_prob_gap_step_0.safetensors")
    trained = bad.select(range(len(bad) // minibatches))
    assert torch.equal(kept["per_token.rollout_log_probs"], trained.per_token["rollout_log_probs"])
    metrics = learner.update(with_gap(make_batch(policy), 3e-4, 1), step=1, first=False)
    assert metrics["train/kl_engine_max"] == pytest.approx(3e-4, rel=0.05)
    assert metrics["train/kl_engine"] == pytest.approx(3e-4 / metrics["train/tokens"], rel=0.1)


def test_a_batch_that_cannot_be_kept_hides_no_gap(tmp_path: Path) -> None:
    policy = Bigram()
    (tmp_path / "file").write_text("")
    learner = make_learner(policy, tmp_path / "file")
    with pytest.raises(LogProbGapError, match=r"largest gap 0\.0003.*; the batch could not be kept\. "):
        learner.update(with_gap(make_batch(policy), 3e-4, 1), step=0, first=True)


@pytest.mark.parametrize(("gap", "tokens", "refused"), [(0.05, 1000, True), (0.5, 4, True), (0.05, 4, False)])
def test_gap_to_the_engine_in_bf16(gap: float, tokens: int, refused: bool, tmp_path: Path) -> None:
    """The mean (bound .02) and k3 (bound 1e-3) are judged, not single tokens."""
    policy = Bigram()
    learner = make_learner(policy, tmp_path, dtype="bf16")
    batch = with_gap(make_batch(policy), gap, tokens)
    if refused:
        with pytest.raises(LogProbGapError, match=r"mean gap .* \(bound 0\.02\), k3 .* \(bound 0\.001\)"):
            learner.update(batch, step=0, first=True)
    else:
        learner.update(batch, step=0, first=True)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_gap_to_an_engine_in_fp8(dtype: str, tmp_path: Path) -> None:
    """Whatever the policy's dtype, means are judged, within .2 and .1."""
    policy = Bigram()
    learner = make_learner(policy, tmp_path, dtype=dtype, serves_fp8=True)
    with pytest.raises(LogProbGapError, match=r"mean gap .* \(bound 0\.2\), k3 .* \(bound 0\.1\)"):
        learner.update(with_gap(make_batch(policy), 0.25, 1000), step=0, first=True)
    learner.update(with_gap(make_batch(policy), 0.15, 1000), step=0, first=True)


def test_rollout_log_probs_as_old(tmp_path: Path) -> None:
    """No forward, and no check of two forwards of one policy; the gap to the engine is checked as ever."""
    policy = Bigram()
    batch = make_batch(policy)
    learner = make_learner(policy, tmp_path, minibatches=3, old_log_probs="rollout")
    with pytest.raises(LogProbGapError, match="largest gap"):
        learner.update(with_gap(batch, 3e-4, 1000), step=0, first=True)
    policy = Bigram()
    learner = make_learner(policy, tmp_path, minibatches=3, old_log_probs="rollout")
    metrics = learner.update(with_gap(batch, 5e-5, 1000), step=0, first=True)
    assert policy.forwards == 0
    assert abs(metrics["train/ppo_kl"]) > 1e-6
    assert metrics["train/kl_engine_max"] > 1e-6


@pytest.mark.parametrize("coef", [0.0, 0.01])
def test_the_entropy_has_a_gradient_only_where_it_is_trained_on(coef: float, tmp_path: Path) -> None:
    """Without a coefficient it is a metric: the policy is not asked for its gradient."""
    asked: list[tuple[bool, bool]] = []

    class Recording(Bigram):
        def train(self, *given: Any, entropy: bool = False, entropy_grad: bool = False, **known: Any) -> Any:
            asked.append((entropy, entropy_grad))
            return super().train(*given, entropy=entropy, entropy_grad=entropy_grad, **known)

    policy = Recording()
    make_learner(policy, tmp_path, entropy_coef=coef).update(make_batch(policy), step=0, first=True)
    assert asked == [(True, coef > 0)]


class Halve:
    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        half = torch.full_like(inputs.log_probs, 0.5)
        return TokenWeights(weights=half, metrics={"half": half})


class Quiet:
    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        return TokenWeights(weights=torch.full_like(inputs.log_probs, 0.5))


def test_corrections_weigh_the_loss(tmp_path: Path) -> None:
    """Two that halve it leave a quarter of loss and gradient; the tokens are counted as ever."""
    plain, quarter = Bigram(), Bigram()
    batch = make_batch(plain)
    one = make_learner(plain, tmp_path).update(batch, step=0, first=True)
    corrections: list[Correction] = [Halve(), Quiet()]
    learner = Learner(
        quarter,
        loss=clipped,
        estimator=GroupRelative(),
        corrections=corrections,
        settings=make_settings(tmp_path),
    )
    two = learner.update(batch, step=0, first=True)
    assert two["train/loss"] == pytest.approx(one["train/loss"] / 4)
    assert two["train/grad_norm"] == pytest.approx(one["train/grad_norm"] / 4)
    assert two["train/tokens"] == one["train/tokens"]
    assert two["train/half"] == pytest.approx(0.5)


class LeastCertain:
    """Trains on the tokens above the mean entropy of the batch."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def batch_columns(self, batch: TrainBatch) -> dict[str, Tensor]:
        columns = batch.per_token
        assert "advantages" in columns, "it comes after them"
        self.seen.append(len(batch))
        mean = masked_mean(columns["old_entropy"], columns["loss_mask"])
        return {"uncertain": (columns["old_entropy"] > mean).float()}

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        weights = inputs.batch.per_token["uncertain"]
        return TokenWeights(weights=weights, metrics={"kept": weights})


def test_a_correction_may_look_at_the_whole_batch(tmp_path: Path) -> None:
    """Once a step, before its first mini-batch: the second one finds the columns of the first."""
    policy, correction = Bigram(), LeastCertain()
    learner = Learner(
        policy,
        loss=clipped,
        estimator=GroupRelative(),
        corrections=[correction],
        settings=make_settings(tmp_path, minibatches=2, needs=frozenset({Input.OLD_ENTROPY})),
    )
    metrics = learner.update(make_batch(policy), step=1, first=True)
    assert correction.seen == [24]
    assert 0.2 < metrics["train/kept"] < 0.8


def test_a_warm_up_makes_the_entropy_that_it_reads(tmp_path: Path) -> None:
    """The critic's returns may need it, where no old log-probs are asked for."""
    policy, needs = Bigram(), frozenset({Input.OLD_ENTROPY})
    settings = make_settings(tmp_path, needs=needs)
    forwards = Forwards(policy, settings, reference=None, teacher=None, critic=None)
    batch = make_batch(policy)
    batch = batch.with_columns(per_sample={"minibatch": torch.zeros(len(batch), dtype=torch.int64)})
    found = forwards.columns(batch, {}, only=needs).per_token["old_entropy"]
    expected = policy.outputs(batch, 0.8).entropy
    assert expected is not None
    torch.testing.assert_close(found, expected.detach())


def test_the_coefficient_of_the_kl_can_be_scaled(tmp_path: Path) -> None:
    """Twice a coefficient is the coefficient of twice as much, in the loss and in the reward."""
    for place in ("loss", "reward"):
        found = []
        for coef, scale in ((0.1, 1.0), (0.1, 2.0), (0.2, 1.0)):
            policy = Bigram()
            learner = Learner(
                policy,
                loss=clipped,
                estimator=GroupRelative(),
                settings=make_settings(
                    tmp_path,
                    kl_coef=coef,
                    kl_place=place,
                    needs=frozenset({Input.OLD_LOG_PROBS}),
                ),
                reference=Bigram(lr=0.0),
            )
            for step, factor in ((1, scale), (2, scale)):
                batch = make_batch(policy)
                zeros = torch.zeros_like(batch.per_token["loss_mask"])
                batch = batch.with_columns(per_token={"rewards": zeros})
                metrics = learner.update(batch, step=step, first=False, kl_scale=factor)
            assert metrics["train/kl_coef"] == coef * scale
            found.append(policy.table.detach().clone())
        assert torch.equal(found[1], found[2]), place
        assert not torch.equal(found[0], found[1]), place


def test_gap_is_not_comparable_where_sampling_was_cut(tmp_path: Path) -> None:
    policy = Bigram()
    learner = make_learner(policy, tmp_path, top_p=0.9)
    metrics = learner.update(with_gap(make_batch(policy), 1.0, 1000), step=0, first=True)
    assert metrics["train/kl_engine_comparable"] == 0
    assert metrics["train/kl_engine"] == pytest.approx(1, rel=1e-3)


def test_only_fresh_tokens_are_compared_with_the_engine(tmp_path: Path) -> None:
    """A batch without any passes, and leaves the check to the next one."""
    policy = Bigram()
    learner = make_learner(policy, tmp_path)
    batch = with_gap(make_batch(policy), 0.5, 3)
    fresh = torch.zeros_like(batch.per_token["loss_mask"])
    metrics = learner.update(batch.with_columns(per_token={"fresh": fresh}), step=1, first=True)
    assert metrics["train/fresh"] == 0
    assert {name for name in metrics if "kl_engine" in name} == {"train/kl_engine_comparable"}
    stale = torch.nonzero(batch.per_token["loss_mask"])[:3, 0]
    part = make_learner(policy, tmp_path).update(
        with_gap(make_batch(policy), 0.5, 3).with_columns(
            per_token={"fresh": torch.ones_like(fresh).index_fill(0, stale, 0.0)}
        ),
        step=1,
        first=True,
    )
    assert 0 < part["train/fresh"] < 1
    assert part["train/kl_engine_max"] <= 1e-6
    with pytest.raises(LogProbGapError, match="largest gap"):
        learner.update(with_gap(make_batch(policy), 0.5, 3), step=2, first=False)


@pytest.mark.parametrize("noise", [(1e-5, 1e-5), (1e-5, -1e-5)])
def test_two_forwards_that_differ_are_refused(noise: tuple[float, float], tmp_path: Path) -> None:
    """Old log-probs off by 1e-5, before any update: all in one direction, or half of them in either."""
    policy = Bigram()
    policy.noise = noise
    with pytest.raises(RunError, match="Two forwards"):
        make_learner(policy, tmp_path, minibatches=2).update(make_batch(policy), step=0, first=True)


@pytest.mark.parametrize("where", ["value", "gradient"])
def test_not_finite(where: str, tmp_path: Path) -> None:
    """The run stops, no weight has changed, and the batch is there for inspection."""

    def broken(inputs: LossInputs) -> LossOutput:
        loss = -inputs.advantages * inputs.log_probs
        # the square root has a finite value and an infinite slope at 0
        bad = inputs.log_probs * math.nan if where == "value" else (inputs.log_probs * 0).sqrt()
        return LossOutput(per_token=loss + bad)

    policy = Bigram()
    batch, before = make_batch(policy), policy.table.detach().clone()
    with pytest.raises(NotFiniteError, match=r"^Step 12 was not taken: .*nan.* in .*step_12\.safetensors\.$"):
        make_learner(policy, tmp_path, loss=broken).update(batch, step=12, first=False)
    assert torch.equal(policy.table, before)
    (path,) = tmp_path.iterdir()
    saved = safetensors.torch.load_file(path)
    assert torch.equal(saved["tokens"], batch.tokens)
    assert torch.equal(saved["per_token.loss_mask"], batch.per_token["loss_mask"])
    assert torch.equal(saved["per_sample.reward"], batch.per_sample["reward"])
    assert {"per_token.advantages", "per_token.weights", "per_sample.minibatch"} <= saved.keys()


def test_the_constant_denominator_is_the_longest_response(tmp_path: Path) -> None:
    """Dr. GRPO's: twice the length that a response may have halves loss and gradient."""

    def metrics(length: int) -> dict[str, float]:
        policy = Bigram()
        learner = make_learner(policy, tmp_path, normalizer="constant", max_response_tokens=length)
        return learner.update(make_batch(policy), step=1, first=False)

    short, long = metrics(5), metrics(10)
    assert abs(short["train/loss"]) > 1e-4
    for name in ("train/loss", "train/grad_norm"):
        assert long[name] == pytest.approx(short[name] / 2, rel=1e-5)
