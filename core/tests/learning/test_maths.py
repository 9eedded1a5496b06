"""`learning.maths` and the toolkit's, against numbers worked out by hand from the papers' formulas.

In float64 unless said.
"""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import rlcore_toolkit as toolkit
from rlcore.learning import maths

NAN, INF = math.nan, math.inf


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def i64(*values: int) -> Tensor:
    return torch.tensor(values)


def gradient(value: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(value.sum(), leaf)[0]


def close(found: Tensor, *expected: float, atol: float = 1e-4) -> None:
    torch.testing.assert_close(found.reshape(-1), f64(*expected), atol=atol, rtol=0)


# --- masks ---------------------------------------------------------------------------------------------


def test_masked_and_segment_means_ignore_nan_in_masked_slots() -> None:
    """A masked slot, be it NaN, gives exactly 0, in the value and in the gradient."""
    x = f64(1, NAN, 3, INF, NAN).requires_grad_()
    mask, segments = f64(1, 0, 1, 0, 0), i64(0, 0, 0, 1, 2)
    means = toolkit.segment_mean(x, mask, segments, 3)
    close(means, 2, 0, 0)
    close(gradient(means.sum() + maths.masked_mean(x, mask), x), 1, 0, 1, 0, 0)
    assert maths.masked_mean(f64(NAN, NAN), f64(0, 0)) == 0


@pytest.mark.parametrize(
    ("values", "mask", "expected"),
    [
        ([5, NAN], [0, 0], [0, 0]),
        ([5, NAN], [1, 0], [5, 0]),
        ([1, 3], [1, 1], [-math.sqrt(0.5), math.sqrt(0.5)]),
        ([1, NAN, 3], [1, 0, 1], [-math.sqrt(0.5), 0, math.sqrt(0.5)]),
        ([2, 2], [1, 1], [0, 0]),
    ],
)
def test_whitening_guard(values: list[float], mask: list[float], expected: list[float]) -> None:
    """Bessel's correction; with fewer than two live tokens unchanged; [1, 3] gives +-.7071."""
    close(maths.whiten(f64(*values), f64(*mask)), *expected)


# --- ratios and KL -------------------------------------------------------------------------------------


def test_ratio_of_extreme_log_probs_is_finite() -> None:
    """Log-ratios of +-1000 and +-inf are finite, and harmless with an advantage of 0; a NaN stays."""
    new = f64(1000, -1000, INF, -INF, NAN, -1).requires_grad_()
    mask = f64(1, 1, 1, 1, 0, 1)
    ratio = maths.importance_ratio(new, f64(0, 0, 0, 0, NAN, -1), mask)
    assert torch.isfinite(ratio).all()
    assert ratio[0] == ratio[2] == math.exp(20)
    assert ratio[4] == 1
    close(gradient(ratio * f64(0, 0, 0, 0, 0, 2), new), 0, 0, 0, 0, 0, 2)
    assert maths.importance_ratio(f64(NAN), f64(0), f64(1)).isnan()


def test_truncated_weights() -> None:
    """TIS (https://fengyao.notion.site/off-policy-rl): tokens to 2, products to 5; no gradient."""
    log_ratios = f64(0.5, -0.5, 1).requires_grad_()
    weights = toolkit.truncated_weights(log_ratios, 0, 2)
    close(weights, 1.6487, 0.6065, 2.0)
    assert not weights.requires_grad
    product = maths.segment_sum(log_ratios, i64(0, 0, 0), 1)
    close(toolkit.truncated_weights(product, 0, 5), math.e)
    close(toolkit.truncated_weights(f64(3, INF), 0, 5), 5, 5)


def test_geometric_sequence_mask() -> None:
    """The geometric mean of the ratios inside [.9, 1.1] keeps the sequence; mean and product tell apart."""
    segments, mask = i64(0, 0, 0, 1, 1, 1), torch.ones(6, dtype=torch.float64)
    mean = toolkit.segment_mean(f64(0.1, -0.1, 0, 0.5, 0.5, 0.5), mask, segments, 2)
    assert (toolkit.band_weights(mean, 0.9, 1.1) > 0).tolist() == [True, False]
    gap = f64(-1, -1, -1) - f64(-0.5, -1.5, -0.8)
    close(toolkit.segment_mean(gap, mask[:3], segments[:3], 1).exp(), 0.9355)
    close(maths.segment_sum(gap, segments[:3], 1).exp(), 0.8187)


def test_icepop_weights() -> None:
    """IcePop (https://arxiv.org/abs/2510.18855): ratio 1, A=[1,-1,2], band [.5, 5]."""
    old, rollout, advantages = f64(-1, -1, -1), f64(-0.5, -3.5, -0.8), f64(1, -1, 2)
    weights = toolkit.band_weights(old - rollout, 0.5, 5)
    close(weights, 0.6065, 0, 0.8187)
    close((-advantages * weights).mean(), -0.7480)


@pytest.mark.parametrize(
    ("kind", "expected", "slope"),
    [
        ("k1", [-1, 14, 29], [1, 1, 1]),
        ("k2", [0.5, 98, 420.5], [-1, 14, 29]),
        ("k3", [0.7183, 13, 28], [1 - math.e, 1, 1]),
        ("low_var_kl", [0.7183, 10, 10], [1 - math.e, 0, 0]),
    ],
)
def test_kl(kind: maths.KlKind, expected: list[float], slope: list[float]) -> None:
    """http://joschu.net/blog/kl-approx.html: lp=-1, ref=[0,-15,-30], then a NaN in a masked slot."""
    new = f64(-1, -1, -1, NAN).requires_grad_()
    values = maths.kl(new, f64(0, -15, -30, NAN), f64(1, 1, 1, 0), kind)
    close(values, *expected, 0)
    close(gradient(values, new), *slope, 0)


@pytest.mark.parametrize("kind", ["k2", "k3", "low_var_kl"])
def test_kl_of_equal_log_probs_is_exactly_zero(kind: maths.KlKind) -> None:
    assert maths.kl(f64(-3.7), f64(-3.7), f64(1), kind) == 0


# --- groups --------------------------------------------------------------------------------------------


def test_samples_of_one_rollout_count_once() -> None:
    """Rollouts 7 and 3 of two samples each, and 5: with their mean rewards, in the order of their ids."""
    rewards, rollouts, groups = f64(1, 2, 4, 6, 9), i64(7, 3, 7, 3, 5), i64(20, 10, 20, 10, 10)
    index, reward, group = toolkit.rollout_rewards(rewards, rollouts, groups)
    assert index.tolist() == [2, 0, 2, 0, 1]
    close(reward, 4, 9, 2.5)
    assert group.tolist() == [10, 10, 20]


@pytest.mark.parametrize(
    ("rewards", "eps", "expected"),
    [
        ([1, 3], 1e-6, [-0.7071, 0.7071]),
        ([2, 2], 1e-6, [0, 0]),
        ([1, 1.01], 1e-6, [-0.7070, 0.7070]),
        ([1, 1.01], 1e-4, [-0.6972, 0.6972]),
    ],
)
def test_group_advantages(rewards: list[float], eps: float, expected: list[float]) -> None:
    """GRPO (https://arxiv.org/abs/2402.03300), std with Bessel's correction."""
    group = torch.zeros(len(rewards), dtype=torch.int64)
    close(toolkit.group_advantages(f64(*rewards), group, std=True, eps=eps), *expected)


def test_group_advantages_without_std() -> None:
    """Dr. GRPO (https://arxiv.org/abs/2503.20783): group scores [6,3] and [9,12]."""
    close(toolkit.group_advantages(f64(6, 3, 9, 12), i64(0, 0, 1, 1), std=False), 1.5, -1.5, -1.5, 1.5)


def test_leave_one_out() -> None:
    """RLOO (https://arxiv.org/abs/2402.14740) on the groups [6,3], [9,12], [1]."""
    rewards = f64(6, 3, 9, 12, 1)
    close(rewards - toolkit.leave_one_out_baseline(rewards, i64(0, 0, 1, 1, 2)), 3, -3, -3, 3, 0)


def test_uneven_groups_are_normalized_by_themselves() -> None:
    """Groups of 3, 5 and 1, interleaved; the group of one gets 0."""
    group = i64(7, 3, 3, 7, 9, 3, 7, 3, 3)
    rewards = f64(1, 10, 20, 2, 5, 30, 3, 40, 50)
    found = toolkit.group_advantages(rewards, group, std=True)
    for identity in (7, 3):
        rows = group == identity
        mine = rewards[rows]
        torch.testing.assert_close(found[rows], (mine - mine.mean()) / (mine.std() + 1e-6))
    assert found[4] == 0


def test_equal_rewards_whose_mean_is_not_representable_give_exactly_zero() -> None:
    rewards = torch.full((10,), 0.1, dtype=torch.float32)
    assert (
        toolkit.group_advantages(rewards, torch.zeros(10, dtype=torch.int64), std=True).tolist() == [0.0] * 10
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-10, 10)), min_size=1, max_size=20))
def test_group_advantages_do_not_depend_on_order(rows: list[tuple[int, float]]) -> None:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(len(rows)))
    group, rewards = i64(*[g for g, _ in rows]), f64(*[r for _, r in rows])
    found = toolkit.group_advantages(rewards, group, std=True)
    shuffled = toolkit.group_advantages(rewards[order], group[order], std=True)
    torch.testing.assert_close(found[order], shuffled)
    assert torch.isfinite(found).all()


# --- credit over time ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gamma", "lam", "returns"),
    [(1, 1, [6, 5, 3]), (0.5, 1, [2.75, 3.5, 3]), (1, 0.5, [3.625, 4.25, 3]), (0.5, 0.5, [2.0312, 3.125, 3])],
)
@pytest.mark.parametrize("gaps", [False, True])
def test_gae(gamma: float, lam: float, returns: list[float], gaps: bool) -> None:
    """GAE (https://arxiv.org/abs/1506.02438): r=[1,2,3], v=[.5,1,1.5].

    Across mask gaps the same as on the compressed sequence. It stands first and last, with a fully masked
    one between.
    """
    r, v, m = [1.0, 2.0, 3.0], [0.5, 1.0, 1.5], [1.0, 1.0, 1.0]
    if gaps:
        r, v, m = [NAN, 1, NAN, NAN, 2, 3, NAN], [NAN, 0.5, NAN, 7, 1, 1.5, NAN], [0, 1, 0, 0, 1, 1, 0]
    n = len(r)
    mask = f64(*m, 0, 0, *m)
    segments = i64(*[0] * n, 1, 1, *[2] * n)
    advantages, found = toolkit.gae(
        f64(*r, 5, 5, *r), f64(*v, 5, 5, *v), mask, segments, 3, gamma=gamma, lam=lam
    )
    close(found[mask > 0], *returns, *returns)
    close(advantages[mask > 0], *[x - y for x, y in zip(returns, [0.5, 1, 1.5], strict=True)] * 2)
    assert not found[mask == 0].any()
    assert not advantages[mask == 0].any()


def test_discounted_sums() -> None:
    """REINFORCE++ returns (https://arxiv.org/abs/2501.03262): credit flows over a masked tool token."""
    close(toolkit.discounted_sums(f64(1, 2, 3), f64(1, 1, 1), i64(0, 0, 0), 1, 0.5), 2.75, 3.5, 3)
    gap = toolkit.discounted_sums(f64(0, 0, 0, 5), f64(1, 1, 0, 1), i64(0, 0, 0, 0), 1, 1.0)
    close(gap, 5, 5, 0, 5)


def test_credit_of_nothing() -> None:
    empty, none = f64(), torch.zeros(0, dtype=torch.int64)
    assert toolkit.discounted_sums(empty, empty, none, 0, 1.0).shape == (0,)
    advantages, _ = toolkit.gae(f64(1, 2), f64(1, 2), f64(0, 0), i64(0, 1), 2, gamma=1, lam=1)
    close(advantages, 0, 0)


# --- the reduction -------------------------------------------------------------------------------------


def test_token_weights() -> None:
    """Samples 0 and 1 are one rollout (2 + 1 live tokens), sample 2 another (1), sample 3 has none."""
    mask, segments, rollouts = f64(1, 1, 0, 1, 0, 1, 0), i64(0, 0, 0, 1, 1, 2, 3), i64(5, 5, 2, 9)

    def weights(normalizer: maths.Normalizer) -> Tensor:
        return maths.token_weights(mask, segments, rollouts, normalizer=normalizer, constant=10)

    sixth = 1 / 6
    close(weights("per_rollout"), sixth, sixth, 0, sixth, 0, 0.5, 0)
    close(weights("per_token"), 0.25, 0.25, 0, 0.25, 0, 0.25, 0)
    close(weights("per_prompt"), sixth, sixth, 0, sixth, 0, 0.5, 0)
    third = 1 / 30
    close(weights("constant"), third, third, 0, third, 0, third, 0)


@pytest.mark.parametrize("normalizer", ["per_rollout", "per_prompt", "per_token", "constant"])
def test_token_weights_of_nothing_live(normalizer: maths.Normalizer) -> None:
    """Fully masked: no weight and no NaN."""
    close(maths.token_weights(f64(0, 0), i64(0, 1), i64(0, 1), normalizer=normalizer, constant=4), 0, 0)
