"""Several rewards as one: weights, parts, the choice of a prompt, groups, and what fails."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from documented import undocumented

from rlcore.api.config import Config
from rlcore.api.errors import ConfigError, DataError, PluginError
from rlcore.api.part import RewardPart
from rlcore.api.part_config import RewardConfig
from rlcore.api.tokens import CHECKED_AHEAD
from rlcore.api.types import Json, Prompt, Sample, Score
from rlcore.rollout.metrics import part_means
from rlcore.rollout.reward_mix import RewardMix, check_choices, check_machine, ranked
from rlcore.rollout.score_check import Failure, ScoreOrFailure
from rlcore_testing.samples import sample_of


class Length:
    """The number of response tokens, with a part."""

    def __init__(self, config: Config) -> None:
        pass

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [
            Score(value=len(s.response_ids), parts={"even": len(s.response_ids) % 2 == 0}) for s in samples
        ]


class Tokens:
    """1 for each token."""

    def __init__(self, config: Config) -> None:
        pass

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [
            Score(value=sum(s.loss_mask), per_token=tuple(float(mask) for mask in s.loss_mask))
            for s in samples
        ]


class Place:
    """Which of its siblings a sample is, out of how many: it needs the whole group."""

    def __init__(self, config: Config) -> None:
        pass

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [Score(value=place / len(samples)) for place in range(len(samples))]


class Picky:
    """No score for an empty response."""

    def __init__(self, config: Config) -> None:
        pass

    @classmethod
    def check(cls, config: Config) -> None:
        raise ConfigError("--reward picky: no microscope.")

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [Score(value=1.0 if s.response_ids else float("nan")) for s in samples]


class Broken:
    def __init__(self, config: Config) -> None:
        raise OSError("no dictionary")

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        raise AssertionError


HERE: dict[str, Any] = {"length": Length, "tokens": Tokens, "place": Place, "picky": Picky, "broken": Broken}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest imports this file under no name that a factory string could have."""
    monkeypatch.setitem(__import__("sys").modules, "mix_rewards", SimpleNamespace(**HERE))


def part(name: str, weight: float = 1.0) -> RewardPart:
    return RewardPart(name=name, factory=f"mix_rewards:{name}", weight=weight)


def group(*masks: tuple[int, ...], reward: Json = None) -> list[Sample]:
    prompt = Prompt(prompt_id="p", text="?", metadata={} if reward is None else {"reward": reward})
    return [
        sample_of((5,) * len(mask), prompt=prompt, index=index, loss_mask=mask)
        for index, mask in enumerate(masks)
    ]


def test_one_reward_keeps_the_names_of_its_parts() -> None:
    assert RewardMix([part("length", 0.5)]).score(group((1, 1), (1,))) == [
        Score(value=1.0, parts={"even": 1.0}),
        Score(value=0.5, parts={"even": 0.0}),
    ]


def test_several_are_added_by_weight_and_each_is_a_part() -> None:
    [score] = RewardMix([part("length", 0.5), part("picky", -2)]).score(group((1, 1, 1)))
    assert score == Score(value=1.5 - 2, parts={"length": 3.0, "length/even": 0.0, "picky": 1.0})


def test_a_weight_of_0_only_measures() -> None:
    [score] = RewardMix([part("length", 0), part("picky")]).score(group((1,)))
    assert score == Score(value=1.0, parts={"length": 1.0, "length/even": 0.0, "picky": 1.0})


def test_a_scalar_joins_rewards_of_tokens_on_the_last_live_one() -> None:
    [score] = RewardMix([part("tokens", 2), part("length", 0.5)]).score(group((1, 0, 1, 0)))
    assert isinstance(score, Score)
    assert score.per_token == (2.0, 0.0, 4.0, 0.0)
    assert score.value == 2 * 2 + 0.5 * 4 == sum(score.per_token)


def test_a_reward_sees_its_whole_group() -> None:
    scores = RewardMix([part("place"), part("picky")]).score(group((1,), (1,), (1,), (1,)))
    assert [score.value for score in scores if isinstance(score, Score)] == [1.0, 1.25, 1.5, 1.75]


@pytest.mark.parametrize(
    ("asked", "value"), [(None, 3.0), ("length", 2.0), (["picky"], 1.0), (["picky", "length"], 3.0)]
)
def test_metadata_choose_the_rewards_of_a_prompt(asked: Json, value: float) -> None:
    [score] = RewardMix([part("length"), part("picky")]).score(group((1, 1), reward=asked))
    assert isinstance(score, Score)
    assert score.value == value
    names = {name for name in score.parts if "/" not in name}
    assert names == (
        {"length", "picky"} if asked is None else {asked} if isinstance(asked, str) else set(asked)
    )


@pytest.mark.parametrize("asked", ["spelling", [], 3, ["length", "spelling"]])
def test_a_choice_of_what_is_not_there_is_no_score(asked: Json) -> None:
    prompts = [sample.prompt for sample in group((1,), reward=asked)]
    with pytest.raises(
        DataError, match=r"'p' has the metadata reward .*expected one or several .*\(length\)"
    ):
        check_choices(prompts, [part("length")])
    [outcome] = RewardMix([part("length")]).score(group((1,), reward=asked))
    assert isinstance(outcome, Failure)


def test_a_reward_that_does_not_apply_counts_for_nothing() -> None:
    class Exempt:
        def score(self, samples: Sequence[Sample]) -> list[Score]:
            return [Score(value=9.0, applies=False)] * len(samples)

    mix = RewardMix([part("length"), part("picky")])
    mix._rewards = {**mix._rewards, "picky": Exempt()}
    [score] = mix.score(group((1, 1)))
    assert score == Score(value=2.0, parts={"length": 2.0, "length/even": 1.0})
    mix._rewards = {"length": Exempt(), "picky": Exempt()}
    [score] = mix.score(group((1, 1)))
    assert score == Score(value=0.0, applies=False)
    assert ranked([Score(value=5.0, applies=False), Score(value=1.0), Score(value=2.0)])[1:] == [
        Score(value=0.0),
        Score(value=1.0),
    ]


class Comparing(RewardConfig):
    needs_label = True


def test_a_prompt_without_a_label_for_a_reward_that_compares() -> None:
    """Unless its metadata chooses another reward."""
    comparing = replace(part("picky"), config=Comparing())
    [bare] = [sample.prompt for sample in group((1,))]
    chosen = replace(bare, metadata={"reward": "length"})
    check_choices([chosen, replace(bare, label="7")], [part("length"), comparing])
    with pytest.raises(
        DataError, match=r"'picky' cannot judge the prompt 'p': its label is missing .*label-key"
    ):
        check_choices([chosen] * CHECKED_AHEAD + [bare], [part("length"), comparing])


def test_a_failure_of_one_reward_is_that_of_its_sample_alone() -> None:
    bad, good = RewardMix([part("length"), part("picky")]).score(group((), (1,)))
    assert isinstance(bad, Failure)
    assert bad.reason.startswith("picky: the value of a score is nan")
    assert good == Score(value=2.0, parts={"length": 1.0, "length/even": 0.0, "picky": 1.0})


def test_a_reward_that_cannot_be_built_is_named() -> None:
    with pytest.raises(
        PluginError,
        match=r"^Reward 'broken' cannot be built: OSError: no dictionary \(.*mix\.py, line 74\)\.$",
    ):
        RewardMix([part("length"), part("broken")])


def test_a_reward_may_refuse_the_machine() -> None:
    check_machine(part("length"))
    with pytest.raises(ConfigError, match="no microscope"):
        check_machine(part("picky"))


def test_the_metrics_of_parts_are_documented() -> None:
    samples = group((1, 1), (1,))
    outcomes = RewardMix([part("length"), part("picky")]).score(samples)
    scores = [outcome for outcome in outcomes if isinstance(outcome, Score)]
    means = part_means(replace(s, score=score) for s, score in zip(samples, scores, strict=True))
    assert means == {"reward/length": 1.5, "reward/length/even": 0.5, "reward/picky": 1.0}
    assert undocumented([*means, *(f"eval/copy/{key}" for key in means)]) == []
    assert undocumented(["reward/a/b/c"]) == ["reward/a/b/c"]


def test_a_rank_counts_in_place_of_the_score() -> None:
    by_rank = replace(part("length", 2.0), ranked=True)
    scores = RewardMix([by_rank]).score(group((1, 1), (1,), (1, 1), (1, 1, 1)))
    assert [one.value for one in scores if isinstance(one, Score)] == [1.0, 0.0, 1.0, 2.0]
    assert [one.parts["value"] for one in scores if isinstance(one, Score)] == [2.0, 1.0, 2.0, 3.0]


def test_a_rank_joins_another_reward_and_knows_no_siblings_without_a_score() -> None:
    by_rank = replace(part("length"), ranked=True)
    bad, *good = RewardMix([by_rank, part("picky", 0.5)]).score(group((), (1,), (1, 1)))
    assert isinstance(bad, Failure)
    assert [one.value for one in good if isinstance(one, Score)] == [0.5 + 0.5, 1.0 + 0.5]
    assert [one.parts["length"] for one in good if isinstance(one, Score)] == [1.0, 2.0]


def test_ranks_are_of_those_that_have_a_score() -> None:
    failure = Failure(kind="k", reason="r")
    outcomes: list[ScoreOrFailure] = [
        failure,
        Score(value=3.0, per_token=(3.0,)),
        Score(value=-1.0),
        Score(value=3.0),
    ]
    assert ranked(outcomes) == [failure, Score(value=0.75), Score(value=0.0), Score(value=0.75)]
    alone: list[ScoreOrFailure] = [failure, Score(value=7.0)]
    assert ranked(alone) == alone
