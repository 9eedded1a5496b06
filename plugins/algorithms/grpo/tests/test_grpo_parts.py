"""Advantage, filter, recipes and settings of the plugin."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from rlcore import Config, Group, Prompt, Score, Span
from rlcore_grpo.advantage import GroupAdvantage
from rlcore_grpo.config import (
    CispoConfig,
    GmpoConfig,
    GroupAdvantageConfig,
    GspoConfig,
    MaxRlConfig,
    PpoClipConfig,
    SapoConfig,
    VespoConfig,
)
from rlcore_grpo.filters import ZeroStd
from rlcore_testing.estimators import EstimatorConformance
from rlcore_testing.samples import sample_of
from rlcore_testing.tensors import one_each, scored


def estimate(
    rewards: list[float], groups: list[int], rollouts: list[int] | None = None, **settings: Any
) -> list[float]:
    """One advantage a sample; each sample has two response tokens, which must agree."""
    estimator = GroupAdvantage(GroupAdvantageConfig(**settings))
    return one_each(estimator.estimate(scored(rewards, groups, rollouts)))


def test_advantage() -> None:
    """GRPO (https://arxiv.org/abs/2402.03300), uneven, interleaved groups; then without the std."""
    found = estimate([1, 2, 3, 1, 1.01, 2, 0.1], [4, 0, 4, 1, 1, 0, 9])
    assert found == pytest.approx([-0.7071, 0, 0.7071, -0.7070, 0.7070, 0, 0], abs=1e-4)
    assert estimate([6, 3, 9, 12], [0, 0, 1, 1], std=False) == [1.5, -1.5, -1.5, 1.5]


def test_a_group_of_one_keeps_its_reward_on_request() -> None:
    """And only that: a group of two samples of one rollout is such a group, one of equal rewards is not."""
    found = estimate([5, 2, 2, 3, 3], [0, 1, 1, 2, 2], [0, 1, 2, 3, 3], single="reward")
    assert found == [5, 0, 0, 3, 3]
    assert estimate([5, 2, 2], [0, 1, 1]) == [0, 0, 0]
    assert GroupAdvantageConfig(single="reward").needed_group_size() == 1
    assert GroupAdvantageConfig().needed_group_size() == 2
    assert MaxRlConfig().needed_group_size() == 2


def test_equal_rewards_give_exactly_zero() -> None:
    assert estimate([0.1] * 7, [0] * 7) == [0.0] * 7


def test_samples_of_a_split_rollout_count_once() -> None:
    """Rollouts with rewards 1 and 3; the first was split in three: still +-.7071."""
    found = estimate([1, 1, 3, 1], [0, 0, 0, 0], [5, 5, 2, 5])
    assert found == pytest.approx([-0.7071, -0.7071, 0.7071, -0.7071], abs=1e-4)


class TestGroupAdvantage(EstimatorConformance):
    scope = "group"
    shift_invariant = True

    def estimator(self) -> GroupAdvantage:
        return GroupAdvantage(GroupAdvantageConfig())


class TestWithoutStd(EstimatorConformance):
    scope = "group"
    shift_invariant = True

    def estimator(self) -> GroupAdvantage:
        return GroupAdvantage(GroupAdvantageConfig(std=False))


def group(*rewards: float | None) -> Group:
    prompt = Prompt(prompt_id="p", text="?")
    samples = tuple(
        sample_of(prompt=prompt, index=i, score=None if reward is None else Score(value=reward))
        for i, reward in enumerate(rewards)
    )
    return Group(group_id=0, prompt=prompt, samples=samples)


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ((0, 1, 0), True),
        ((1, 1, 1), False),
        ((0, 0), False),
        ((1,), False),
        ((1, None, 1), False),
        ((1, None, 0), True),
    ],
)
def test_zero_std(rewards: tuple[float | None, ...], kept: bool) -> None:
    scored = group(*rewards)
    verdict = ZeroStd(Config()).judge(scored)
    assert (verdict.group, verdict.reason) == ((scored, None) if kept else (None, "zero_std"))


@pytest.mark.parametrize(
    ("rewards", "rollouts", "kept"),
    [
        ((0.0, 1.0), "aa", False),  # one rollout: its advantage is 0
        ((0.0, 1.0, 0.5), "aab", False),
        ((0.1, 0.1, 0.1, 0.1), "aaab", False),
        ((0.0, 1.0, 1.0), "aab", True),
    ],
)
def test_zero_std_counts_rollouts(rewards: tuple[float, ...], rollouts: str, kept: bool) -> None:
    whole = group(*rewards)
    samples = zip(whole.samples, rollouts, strict=True)
    split = replace(whole, samples=tuple(replace(sample, rollout_id=rollout) for sample, rollout in samples))
    assert (ZeroStd(Config()).judge(split).group is not None) is kept


@pytest.mark.parametrize(("rewards", "kept"), [((1.0, 1.0, 0.0, 0.0), False), ((1.0, 1.0, 0.0, 0.5), True)])
def test_zero_std_judges_each_policy(rewards: tuple[float, ...], kept: bool) -> None:
    whole = group(*rewards)
    spans = [(Span(start=0, version=0, policy=name),) for name in ("", "", "critic", "critic")]
    samples = zip(whole.samples, spans, strict=True)
    mixed = replace(whole, samples=tuple(replace(sample, spans=of) for sample, of in samples))
    assert (ZeroStd(Config()).judge(mixed).group is not None) is kept


@pytest.mark.parametrize(
    ("config", "bad"),
    [
        (PpoClipConfig, {"clip_low": 0}),
        (PpoClipConfig, {"clip_low": 1.5}),
        (PpoClipConfig, {"clip_high": -0.1}),
        (PpoClipConfig, {"dual_clip": 1}),
        (PpoClipConfig, {"clip": 0.2}),
        (GroupAdvantageConfig, {"eps": 0}),
        (CispoConfig, {"clip_low": 0}),
        (CispoConfig, {"clip_low": 1.5}),
        (CispoConfig, {"clip_high": 0}),
        (CispoConfig, {"dual_clip": 3}),
        (SapoConfig, {"tau_pos": 0}),
        (SapoConfig, {"tau_neg": -1}),
        (SapoConfig, {"tau_neg": 1e9}),
        (SapoConfig, {"clip_low": 0.2}),
        (GspoConfig, {"clip_low": 0}),
        (GspoConfig, {"clip_low": 1.5}),
        (GspoConfig, {"clip_high": -1}),
        (GspoConfig, {"clip": 0.2}),
        (GmpoConfig, {"clip_low": 0}),
        (VespoConfig, {"k_pos": -1}),
    ],
)
def test_settings_out_of_bounds_are_refused(config: type[Config], bad: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        config.model_validate(bad)


def test_registration_and_filters_import_no_torch() -> None:
    code = "import sys, rlcore_grpo.plugin, rlcore_grpo.filters; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
