"""The estimators against numbers worked out by hand, and their invariants.

Formulas: REINFORCE (https://doi.org/10.1007/BF00992696), RLOO (https://arxiv.org/abs/2402.14740),
REINFORCE++ (https://arxiv.org/abs/2501.03262).
"""

import math
from typing import NamedTuple, Protocol

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from rlcore import Input, TrainBatch
from rlcore_reinforce.advantage import (
    GroupPolicyGradient,
    LeaveOneOut,
    OptimalBaseline,
    ReinforceAdvantage,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    ReMax,
)
from rlcore_reinforce.config import ReinforceConfig, ReinforcePlusPlusConfig, ReMaxConfig, SiblingsConfig
from rlcore_testing.estimators import EstimatorConformance
from rlcore_testing.tensors import responses

NAN = math.nan


class Row(NamedTuple):
    """A sample: rewards of its response tokens, their mask (none: all live), its group and its rollout."""

    rewards: list[float]
    mask: list[int] | None = None
    group: int = 0
    rollout: int | None = None


def batch_of(*rows: Row) -> TrainBatch:
    """The reward of a sample is the sum of its live tokens' rewards."""
    lengths = torch.tensor([len(row.rewards) for row in rows])
    masks = [row.mask or [1] * len(row.rewards) for row in rows]
    reward = [
        sum(value for value, live in zip(row.rewards, mask, strict=True) if live)
        for row, mask in zip(rows, masks, strict=True)
    ]
    return responses(lengths.tolist()).with_columns(
        per_token={
            "loss_mask": torch.tensor([float(live) for mask in masks for live in mask]),
            "rewards": torch.tensor([float(value) for row in rows for value in row.rewards]),
        },
        per_sample={
            "reward": torch.tensor(reward, dtype=torch.float32),
            "group": torch.tensor([row.group for row in rows]),
            "rollout": torch.tensor(
                [place if row.rollout is None else row.rollout for place, row in enumerate(rows)]
            ),
        },
    )


class Estimator(Protocol):
    """What all estimators here have in common: they bring no returns."""

    def estimate(self, batch: TrainBatch) -> Tensor: ...


def reinforce(gamma: float = 1.0, baseline: bool = True) -> Estimator:
    return ReinforceAdvantage(ReinforceConfig(gamma=gamma, baseline=baseline))


def plus_plus(gamma: float = 1.0) -> Estimator:
    return ReinforcePlusPlus(ReinforcePlusPlusConfig(gamma=gamma))


RLOO = LeaveOneOut(SiblingsConfig())
PLUS_PLUS_BASELINE = ReinforcePlusPlusBaseline(SiblingsConfig())


def check(estimator: Estimator, rows: list[Row], expected: list[float]) -> None:
    found = estimator.estimate(batch_of(*rows))
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected, abs=1e-4)


def singles(*groups: list[float]) -> list[Row]:
    """One-token responses."""
    return [Row([reward], group=number) for number, rewards in enumerate(groups) for reward in rewards]


# --- returns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gamma", "row", "expected"),
    [
        (0.5, Row([1, 2, 3]), [2.75, 3.5, 3]),
        (1.0, Row([0, 0, 0, 5], [1, 1, 0, 1]), [5, 5, 0, 5]),
        (0.5, Row([0, 0, 0, 5], [1, 1, 0, 1]), [1.25, 2.5, 0, 5]),
        (1.0, Row([NAN, 1, NAN, 2, NAN], [0, 1, 0, 1, 0]), [0, 3, 0, 2, 0]),
        (0.0, Row([1, 2, 3]), [1, 2, 3]),
    ],
)
def test_return_to_go(gamma: float, row: Row, expected: list[float]) -> None:
    """Credit flows across tokens that a tool wrote, undiscounted: they take no time step."""
    check(reinforce(gamma, baseline=False), [row], expected)


def test_returns_do_not_cross_samples() -> None:
    check(reinforce(0.5, baseline=False), [Row([0, 4]), Row([0, 8])], [2, 4, 4, 8])


def test_baseline_counts_a_rollout_once_however_long() -> None:
    """Rewards 4 and 0 have the mean 2; the mean over tokens would be 1."""
    check(reinforce(), [Row([4]), Row([0, 0, 0])], [2, -2, -2, -2])


def test_baseline_counts_a_split_rollout_once() -> None:
    """Rollouts with 4 (split in two) and 0: mean 2; the mean over samples would be 2.67."""
    check(reinforce(), [Row([4], rollout=7), Row([0], rollout=3), Row([4], rollout=7)], [2, -2, 2])


def test_baseline_is_the_mean_return_of_the_tokens() -> None:
    """gamma .5: returns [2, 4] and [8], rollout means 3 and 8, baseline 5.5."""
    check(reinforce(0.5), [Row([0, 4]), Row([8])], [-3.5, -1.5, 2.5])


def test_a_rollout_without_live_tokens_is_not_in_the_baseline() -> None:
    check(reinforce(), [Row([4]), Row([9, 9], [0, 0]), Row([0])], [2, 0, 0, -2])


# --- OPO and GPG ---------------------------------------------------------------------------------------


OPO = OptimalBaseline(SiblingsConfig())
GPG = GroupPolicyGradient(SiblingsConfig())


def test_opo_weighs_the_baseline_by_length() -> None:
    """Rewards 1 and 0 with 1 and 3 live tokens: baseline .25. A masked token has no length."""
    check(OPO, [Row([1, 0], [1, 0]), Row([0, 0, 0])], [0.75, 0.75, -0.25, -0.25, -0.25])


def test_opo_counts_the_tokens_of_a_split_rollout_together() -> None:
    """Rollouts of 3 (1 + 2 tokens, reward 4) and 1 token (reward 0): baseline 3."""
    rows = [Row([4], rollout=7), Row([0], rollout=3), Row([0, 4], rollout=7)]
    check(OPO, rows, [1, -3, 1, 1])


def test_opo_of_equal_rewards_is_exactly_zero() -> None:
    rows = [Row([0.1]), Row([0, 0.1]), Row([0, 0, 0.1]), Row([7], group=1)]
    assert OPO.estimate(batch_of(*rows)).tolist() == [0.0] * 7


def test_gpg_scales_by_the_groups_that_have_a_signal() -> None:
    """Two of five rollouts say nothing: 5 / 3. Centered: 2/3, -1/3, -1/3."""
    check(GPG, singles([1, 0, 0], [1, 1]), [10 / 9, -5 / 9, -5 / 9, 0, 0])
    check(GPG, singles([1, 1], [0.1, 0.1, 0.1]), [0] * 5)


# --- the greedy response ---------------------------------------------------------------------------------


def remax(rows: list[Row], greedy: list[float], gamma: float = 1.0) -> list[float]:
    batch = batch_of(*rows).with_columns(per_sample={Input.GREEDY_REWARD: torch.tensor(greedy)})
    found = ReMax(ReMaxConfig(gamma=gamma)).estimate(batch)
    assert found.dtype == torch.float32
    values: list[float] = found.tolist()
    return values


def test_remax_is_the_reward_less_that_of_the_greedy_response() -> None:
    """Two prompts with greedy rewards 1 and 0.5: every live token has what its sample earned beyond them."""
    rows = [Row([0, 4]), Row([2]), Row([0, 0, 3], [1, 0, 1], group=1)]
    assert remax(rows, [1.0, 1.0, 0.5]) == [3, 3, 1, 2.5, 0, 2.5]


def test_remax_of_rewards_of_tokens_and_turns() -> None:
    """What is still to come, less the greedy reward; a tool's token takes no time step, its NaN no part."""
    assert remax([Row([1, NAN, 2, 3], [1, 0, 1, 1])], [2.0]) == [4, 0, 3, 1]
    assert remax([Row([0, 4])], [1.0], gamma=0.5) == [1, 3]


# --- leave one out -------------------------------------------------------------------------------------


def test_rloo() -> None:
    check(RLOO, singles([6, 3], [9, 12], [1]), [3, -3, -3, 3, 0])


def test_rloo_of_uneven_interleaved_groups() -> None:
    """In a group of three each is compared with the mean of two: +-1.5, where the group mean gives +-1."""
    rows = [Row([1, 0], group=5), Row([4], group=2), Row([2], group=5), Row([0], group=2), Row([3], group=5)]
    check(RLOO, rows, [-1.5, -1.5, 4, 0, -4, 1.5])


def test_rloo_counts_a_split_rollout_once() -> None:
    rows = [Row([reward], rollout=rollout) for reward, rollout in [(1, 5), (1, 5), (3, 2), (1, 5)]]
    check(RLOO, rows, [-2, -2, 2, -2])


def test_a_split_rollout_has_the_mean_reward_of_its_samples() -> None:
    """Rollout 5 has rewards 0 and 2, so 1; the other one has 3."""
    rows = [Row([0], rollout=5), Row([3], rollout=2), Row([2], rollout=5)]
    check(RLOO, rows, [-2, 2, -2])


# --- whitened ------------------------------------------------------------------------------------------


def test_plus_plus_normalizes_over_tokens() -> None:
    """Returns [3 | 1 1 1]: mean 1.5, variance 1 (Bessel). By samples it would be +-.7071."""
    check(plus_plus(), [Row([3]), Row([0, 0, 1])], [1.5, -0.5, -0.5, -0.5])


def test_plus_plus_across_a_mask_gap() -> None:
    """Live returns [5 5 5 | 1]: mean 4, std 2; the gap is neither counted nor trained on."""
    check(plus_plus(), [Row([0, 0, 0, 5], [1, 1, 0, 1]), Row([1])], [0.5, 0.5, 0, 0.5, -1.5])


def test_plus_plus_discounts_before_it_normalizes() -> None:
    """gamma .5: returns [1 2 | 0], mean 1, std 1."""
    check(plus_plus(0.5), [Row([0, 2]), Row([0])], [0, 1, -1])


def test_plus_plus_is_not_relative_to_the_group() -> None:
    check(plus_plus(), singles([1], [3]), [-0.7071, 0.7071])
    check(plus_plus(), singles([1, 1], [3, 3]), [-0.8660, -0.8660, 0.8660, 0.8660])


def test_whitening_guard() -> None:
    """One live token keeps its return; none: zeros."""
    check(plus_plus(), [Row([3, 9], [1, 0])], [3, 0])
    check(plus_plus(), [Row([3, 9], [0, 0])], [0, 0])
    check(PLUS_PLUS_BASELINE, [Row([3, 9], [0, 0])], [0, 0])


def test_plus_plus_baseline_keeps_the_scales_of_the_groups() -> None:
    """Centered [-1 1 -10 10], variance 202/3 = 8.2057^2; by their own std both groups would have +-.7071."""
    check(PLUS_PLUS_BASELINE, singles([0, 2], [0, 20]), [-0.1219, 0.1219, -1.2187, 1.2187])
    check(PLUS_PLUS_BASELINE, singles([6, 3], [9, 12]), [0.8660, -0.8660, -0.8660, 0.8660])


def test_plus_plus_baseline_of_uneven_groups() -> None:
    """Centered [-1 0 1 | -1 1 | 0], variance 4/5. Leaving one out would stretch the pair more."""
    expected = [-1.1180, 0, 1.1180, -1.1180, 1.1180, 0]
    check(PLUS_PLUS_BASELINE, singles([1, 2, 3], [0, 2], [7]), expected)


def test_plus_plus_baseline_counts_a_split_rollout_once() -> None:
    """Centered [-1 -1 1 -1]: mean -.5 and variance 1 over tokens. By samples the group mean would be 1.5."""
    rows = [Row([reward], rollout=rollout) for reward, rollout in [(1, 5), (1, 5), (3, 2), (1, 5)]]
    check(PLUS_PLUS_BASELINE, rows, [-0.5, -0.5, 1.5, -0.5])


@pytest.mark.parametrize("estimator", [reinforce(), RLOO, plus_plus(), PLUS_PLUS_BASELINE])
def test_equal_rewards_give_zero(estimator: Estimator) -> None:
    found = estimator.estimate(batch_of(*singles([0.1] * 7)))
    assert found.abs().max() < 1e-12


# --- invariants ----------------------------------------------------------------------------------------

ROW = st.builds(
    lambda tokens, group: Row([float(r) for r, _ in tokens], [live for _, live in tokens], group),
    st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 1)), min_size=1, max_size=4),
    st.integers(0, 2),
)
ROWS = st.lists(ROW, min_size=1, max_size=8)


@given(rows=ROWS)
@settings(max_examples=25, deadline=None)
def test_leave_one_out_sums_to_zero_in_each_group(rows: list[Row]) -> None:
    one_token = [Row([sum(row.rewards)], group=row.group) for row in rows]
    found = RLOO.estimate(batch_of(*one_token)).double()
    for group in {row.group for row in one_token}:
        members = torch.tensor([row.group == group for row in one_token])
        assert abs(float(found[members].sum())) < 1e-4


@given(rows=ROWS)
@settings(max_examples=25, deadline=None)
def test_whitened_advantages_have_mean_0_and_variance_1(rows: list[Row]) -> None:
    batch = batch_of(*rows)
    mask = batch.per_token["loss_mask"] > 0
    for estimator in (plus_plus(), PLUS_PLUS_BASELINE):
        found = estimator.estimate(batch)
        assert not found[~mask].any()
        live = found[mask].double()
        if len(live) < 2:
            continue
        variance = float(live.var())
        assert float(live.mean()) == pytest.approx(0, abs=1e-5)
        assert variance == pytest.approx(1, abs=1e-4) or variance < 1e-9


# --- what every estimator fulfills ---------------------------------------------------------------------


class TestReinforce(EstimatorConformance):
    shift_invariant = True

    def estimator(self) -> Estimator:
        return reinforce()


class TestDiscountedReturns(EstimatorConformance):
    scope = "sample"

    def estimator(self) -> Estimator:
        return reinforce(0.5, baseline=False)


class TestLeaveOneOut(EstimatorConformance):
    scope = "group"
    shift_invariant = True

    def estimator(self) -> Estimator:
        return RLOO


class TestReMax(EstimatorConformance):
    scope = "sample"

    def columns(self, batch: TrainBatch) -> TrainBatch:
        greedy_B = batch.per_sample["group"].float() / 5
        return batch.with_columns(per_sample={Input.GREEDY_REWARD: greedy_B})

    def estimator(self) -> Estimator:
        return ReMax(ReMaxConfig(gamma=0.9))


class TestPlusPlus(EstimatorConformance):
    shift_invariant = True

    def estimator(self) -> Estimator:
        return plus_plus()


class TestPlusPlusDiscounted(EstimatorConformance):
    def estimator(self) -> Estimator:
        return plus_plus(0.9)


class TestPlusPlusBaseline(EstimatorConformance):
    shift_invariant = True

    def estimator(self) -> Estimator:
        return PLUS_PLUS_BASELINE
