"""What the filters keep, change and drop."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError

from rlcore.api.config import Config
from rlcore.api.errors import DataError
from rlcore.api.records import Component
from rlcore.api.reward import Filter, Verdict
from rlcore.api.types import GenerationStatus, Group, Prompt, RewardStatus, Sample, Score, Span
from rlcore_filters import plugin
from rlcore_filters.config import (
    DuplicatesConfig,
    OverlongConfig,
    PreferConfig,
    RewardRangeConfig,
    StalenessConfig,
)
from rlcore_filters.filters import Duplicates, Overlong, Prefer, RewardRange, Staleness
from rlcore_testing.parts import part_of
from rlcore_testing.samples import sample_of

PROMPT = Prompt(prompt_id="p", text="?")


def sample(
    response: Sequence[int] = (1, 2, 3),
    *,
    reward: float = 0.0,
    cut: bool = False,
    mask: Sequence[int] | None = None,
    per_token: Sequence[float] | None = None,
    rollout: str = "0",
) -> Sample:
    mask = tuple(mask if mask is not None else [1] * len(response))
    return sample_of(
        tuple(response),
        prompt=PROMPT,
        rollout_id=rollout,
        loss_mask=mask,
        log_probs=tuple(-1.0 * live for live in mask),
        status=GenerationStatus.TRUNCATED if cut else GenerationStatus.COMPLETED,
        reward_status=RewardStatus.SCORED,
        score=Score(value=reward, per_token=None if per_token is None else tuple(per_token)),
    )


def group(*samples: Sample) -> Group:
    """Samples with the rollout "0" get one of their own."""
    own = (
        replace(s, index=place, rollout_id=f"own {place}" if s.rollout_id == "0" else s.rollout_id)
        for place, s in enumerate(samples)
    )
    return Group(group_id=0, prompt=PROMPT, samples=tuple(own))


def rewards_of(verdict: Verdict) -> list[float]:
    assert verdict.group is not None
    return [s.score.value for s in verdict.group.samples if s.score is not None]


# --- overlong ------------------------------------------------------------------------------------------


def test_mask() -> None:
    """Truncated samples keep tokens, reward and place; nothing of them is trained on."""
    found = group(sample(cut=True, reward=1), sample((4, 5, 6, 7)), sample((8,), mask=[0]))
    verdict = Overlong(OverlongConfig()).judge(found)
    assert verdict.group is not None
    cut, *others = verdict.group.samples
    assert cut == replace(found.samples[0], loss_mask=(0, 0, 0), log_probs=(0.0, 0.0, 0.0))
    assert tuple(others) == found.samples[1:]
    assert rewards_of(verdict) == [1, 0, 0]


def test_a_truncated_sample_drops_its_group_on_request() -> None:
    drop = Overlong(OverlongConfig(mode="drop"))
    verdict = drop.judge(group(sample(cut=True), sample((4,))))
    assert (verdict.group, verdict.reason) == (None, "overlong")
    whole = group(sample((5,)), sample((4,)))
    assert drop.judge(whole).group == whole


def test_a_group_of_truncated_samples_is_dropped() -> None:
    verdict = Overlong(OverlongConfig()).judge(group(sample(cut=True), sample(cut=True)))
    assert (verdict.group, verdict.reason) == (None, "overlong")


def soft(max_tokens: int, buffer: int) -> Overlong:
    return Overlong(OverlongConfig(mode="penalty", max_tokens=max_tokens, buffer=buffer))


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0), (6, 0), (7, 0.25), (8, 0.5), (9, 0.75), (10, 1), (11, 1), (99, 1)]
)
def test_penalty(tokens: int, penalty: float) -> None:
    """DAPO, equation 13 (https://arxiv.org/abs/2503.14476): L_max = 10, L_cache = 4."""
    assert rewards_of(soft(10, 4).judge(group(sample([1] * tokens, reward=1)))) == [1 - penalty]


def test_penalty_trains_on_truncated_samples() -> None:
    verdict = soft(4, 4).judge(group(sample((1, 2, 3), cut=True, reward=-1), sample((1,))))
    assert verdict.group is not None
    assert [s.loss_mask for s in verdict.group.samples] == [(1, 1, 1), (1,)]
    assert rewards_of(verdict) == [-1.75, -0.25]


def test_penalty_falls_on_the_last_live_token() -> None:
    """Where rewards are per token; the value falls too. Without a live token only the value does."""
    found = group(
        sample((1, 2, 3), mask=[1, 1, 0], reward=3, per_token=[0.5, 1, 2]),
        sample((1, 2), mask=[0, 0], reward=1, per_token=[0, 1]),
    )
    verdict = soft(4, 4).judge(found)
    assert verdict.group is not None
    scores = [s.score for s in verdict.group.samples]
    assert scores == [Score(value=2.25, per_token=(0.5, 0.25, 2)), Score(value=0.5, per_token=(0, 1))]


def test_parts_of_a_score_stay() -> None:
    scored = replace(sample([1] * 4), score=Score(value=1, parts={"format": 1.0}))
    verdict = soft(4, 2).judge(group(scored))
    assert verdict.group is not None
    assert verdict.group.samples[0].score == Score(value=0, parts={"format": 1.0})


@given(
    longest=st.integers(1, 30),
    share=st.floats(0.01, 1),
    lengths=st.lists(st.integers(0, 40), min_size=2, max_size=6),
)
@settings(max_examples=50, deadline=None)
def test_penalty_grows_with_length_from_0_to_1(longest: int, share: float, lengths: list[int]) -> None:
    lengths = sorted(lengths)
    verdict = soft(longest, max(1, int(longest * share))).judge(group(*(sample([1] * n) for n in lengths)))
    values = rewards_of(verdict)
    assert values == sorted(values, reverse=True)
    assert all(-1 <= value <= 0 for value in values)


# --- duplicates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("responses", "least", "kept"),
    [
        ([(1, 2), (1, 2), (1, 3)], 2, True),
        ([(1, 2), (1, 2), (1, 2)], 2, False),
        ([(1, 2), (1, 2), (1, 3)], 3, False),
        ([(1,), (1, 1), ()], 3, True),
        ([(1,)], 2, False),
    ],
)
def test_duplicates(responses: list[tuple[int, ...]], least: int, kept: bool) -> None:
    found = group(*map(sample, responses))
    verdict = Duplicates(DuplicatesConfig(min_distinct=least)).judge(found)
    assert (verdict.group, verdict.reason) == ((found, None) if kept else (None, "duplicates"))


def test_a_split_rollout_is_one_response() -> None:
    """Two rollouts of (1)(2): not distinct, though their samples are."""
    same = [sample([token], rollout=name) for name in "ab" for token in (1, 2)]
    assert Duplicates(DuplicatesConfig()).judge(group(*same)).group is None
    other = [*same[:2], sample([1], rollout="b"), sample([3], rollout="b")]
    assert Duplicates(DuplicatesConfig()).judge(group(*other)).group is not None


# --- staleness -----------------------------------------------------------------------------------------


def made_by(*versions: int) -> Sample:
    """One response token for each of these weight versions."""
    spans = tuple(Span(start=place, version=version) for place, version in enumerate(versions))
    return replace(sample([7] * len(versions)), spans=spans)


@pytest.mark.parametrize(
    ("versions", "max_age", "trained_on"),
    [
        ([(4,), (4,)], 0, [True, True]),
        ([(-1,), (-1, 5), (3, 5)], 1, [True, True, False]),  # -1: recorded, made by no weights of the run
        ([(4,), (3,)], 0, [True, False]),
        ([(4, 5), (5,)], 0, [False, True]),
        ([(4, 5, 6), (5, 6), (6,)], 1, [False, True, True]),
        ([(4, 5, 6), (5, 6), (6,)], 2, [True, True, True]),
        ([(2,), (7,), (6, 7)], 1, [False, True, True]),
    ],
)
def test_old_samples_are_masked(
    versions: list[tuple[int, ...]], max_age: int, trained_on: list[bool]
) -> None:
    """By the oldest weights of the sample and the newest of the group; rewards, tokens and places stay."""
    found = group(*(made_by(*each) for each in versions))
    verdict = Staleness(StalenessConfig(max_age=max_age)).judge(found)
    assert verdict.group is not None
    assert [any(s.loss_mask) for s in verdict.group.samples] == trained_on
    for after, before, live in zip(verdict.group.samples, found.samples, trained_on, strict=True):
        tokens = len(before.response_ids)
        masked = replace(before, loss_mask=(0,) * tokens, log_probs=(0.0,) * tokens)
        assert after == (before if live else masked)


def test_a_group_of_old_samples_is_dropped() -> None:
    """On request for one of them; always where each of them spans too many publications."""
    one, both = group(made_by(1), made_by(3)), group(made_by(1, 3), made_by(1, 2))
    drop = Staleness(StalenessConfig(max_age=1, mode="drop"))
    mask = Staleness(StalenessConfig(max_age=1))
    assert (drop.judge(one).group, drop.judge(one).reason) == (None, "stale")
    assert mask.judge(one).group is not None
    for each in (drop, mask):
        assert each.judge(both).reason == "stale"
        assert each.judge(group(made_by(2), made_by(3))).group is not None


# --- reward range --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([1, 0, 0, 0, 0], None),
        ([1, 1, 1, 1, 0], None),
        ([1, 0, 0, 0, 0, 0], "reward_low"),
        ([1, 1, 1, 1, 1, 0], "reward_high"),
        ([0.5], None),
        ([1], "reward_high"),
        ([0, 0, 3, 0, 0], None),
    ],
)
def test_reward_range(rewards: list[float], reason: str | None) -> None:
    """The mean lies in [.2, .8], both ends included."""
    found = group(*(sample(reward=reward) for reward in rewards))
    verdict = RewardRange(RewardRangeConfig()).judge(found)
    assert (verdict.group, verdict.reason) == (None if reason else found, reason)


def test_reward_range_counts_a_split_rollout_once() -> None:
    """Rollouts with 1 (split in four) and 0: mean .5, where the mean over samples is .8."""
    found = group(*(sample(reward=1, rollout="a") for _ in range(4)), sample(rollout="b"))
    assert RewardRange(RewardRangeConfig(low=0.4, high=0.6)).judge(found).group is found


@pytest.mark.parametrize(
    ("rewards", "policies", "reason"),
    [
        ([1, 0, 0, 1], ["", "critic"], None),
        ([1, 1, 0, 1], [""], None),
        ([1, 0, 1, 0], [], "reward_high"),  # the mean of all is .5, as where one of two always wins
    ],
)
def test_reward_range_judges_each_policy(
    rewards: list[float], policies: list[str], reason: str | None
) -> None:
    """Samples 0 and 2 are of the run's own policy, the others of a further one."""
    spans = [(Span(start=0, version=0, policy=name),) for name in ("", "critic") * 2]
    found = group(*(replace(sample(reward=r), spans=of) for r, of in zip(rewards, spans, strict=True)))
    verdict = RewardRange(RewardRangeConfig()).judge(found)
    kept = verdict.group.samples if verdict.group else ()
    assert sorted({one.policy for one in kept if any(one.loss_mask)}) == policies
    assert verdict.reason == reason
    assert all(one.policy == of[0].policy for one, of in zip(kept, spans, strict=False))


def test_who_trains_nothing_keeps_no_group() -> None:
    """A frozen opponent is in the range, the policy is not; and a group without scores has no mean."""
    own = replace(sample(reward=1), spans=(Span(start=0, version=0, policy=""),))
    opponent = replace(sample(reward=0.5), spans=(Span(start=0, version=0, policy="opponent"),))
    opponent = replace(opponent, loss_mask=tuple(0 for _ in opponent.loss_mask))
    verdict = RewardRange(RewardRangeConfig()).judge(group(own, opponent))
    assert (verdict.group, verdict.reason) == (None, "reward_high")
    exempt = group(replace(sample(), score=None))
    assert RewardRange(RewardRangeConfig()).judge(exempt).group is exempt


@given(rewards=st.lists(st.integers(0, 4).map(lambda n: n / 4), min_size=1, max_size=6), data=st.data())
@settings(max_examples=50, deadline=None)
def test_the_order_of_samples_does_not_matter(rewards: list[float], data: st.DataObject) -> None:
    found = group(*(sample([int(4 * r)], reward=r) for r in rewards))
    shuffled = replace(found, samples=tuple(data.draw(st.permutations(found.samples))))
    filters: list[Filter] = [RewardRange(RewardRangeConfig()), Duplicates(DuplicatesConfig(min_distinct=3))]
    for each in filters:
        assert each.judge(found).reason == each.judge(shuffled).reason


# --- prefer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "expected"), [("newest", [1, 0, 2]), ("reward_spread", [2, 0, 1]), ("priority", [1, 2, 0])]
)
def test_prefer(by: str, expected: list[int]) -> None:
    """Of equal ones the oldest goes first."""
    three = [
        of_group(0, version=3, rewards=(0, 0.5), priority=-1),
        of_group(1, version=4, rewards=(1, 1)),
        of_group(2, version=3, rewards=(0, 1)),
    ]
    judge = Prefer(PreferConfig.model_validate({"by": by}))
    assert all(judge.judge(one).group is one for one in three)
    assert [one.group_id for one in judge.order(three, 5)] == expected


def test_prefer_refuses_a_priority_that_is_none() -> None:
    with pytest.raises(DataError, match="The prompt 'p' has the priority 'high', expected a number"):
        Prefer(PreferConfig(by="priority")).order([of_group(0, priority="high")], 1)


def of_group(
    group_id: int, *, version: int = 0, rewards: Sequence[float] = (0.0,), **metadata: object
) -> Group:
    spans = (Span(start=0, version=version),)
    made = group(*(replace(sample(reward=reward), spans=spans) for reward in rewards))
    return replace(made, group_id=group_id, prompt=replace(PROMPT, metadata=metadata))


# --- registration --------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", list(plugin.rlcore_filters()), ids=lambda component: component.name)
def test_each_component_is_made_from_its_defaults(component: Component) -> None:
    part_of(component).build()


AT = "--filter.overlong"


@pytest.mark.parametrize(
    ("config", "bad", "words"),
    [
        (OverlongConfig, {"mode": "cut"}, "mask"),
        (OverlongConfig, {"mode": "penalty"}, f"needs {AT}.max-tokens and {AT}.buffer"),
        (OverlongConfig, {"mode": "penalty", "max_tokens": 4}, f"needs {AT}.max-tokens and {AT}.buffer"),
        (OverlongConfig, {"mode": "penalty", "max_tokens": 4, "buffer": 5}, f"larger than {AT}.max-tokens 4"),
        (OverlongConfig, {"mode": "penalty", "max_tokens": 4, "buffer": 0}, "greater than"),
        (OverlongConfig, {"max_tokens": 4}, f"belong to {AT}.mode penalty"),
        (StalenessConfig, {"max_age": -1}, "greater than"),
        (StalenessConfig, {"mode": "penalty"}, "drop"),
        (DuplicatesConfig, {"min_distinct": 1}, "greater than"),
        (RewardRangeConfig, {"low": 0.9}, "above high"),
        (RewardRangeConfig, {"high": float("nan")}, "finite"),
        (RewardRangeConfig, {"mean": 1}, "Extra"),
    ],
)
def test_settings_out_of_bounds_are_refused(config: type[Config], bad: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        config.model_validate(bad)


def test_registration_and_filters_import_no_torch() -> None:
    code = "import sys, rlcore_filters.plugin, rlcore_filters.filters; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
