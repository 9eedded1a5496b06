"""The text rewards, against scores worked out by hand."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from rlcore.api.types import GenerationStatus, Json, Score
from rlcore_testing.rewards import sample
from rlcore_text.config import (
    ExactMatchConfig,
    F1Config,
    FormatConfig,
    LengthRankConfig,
    RandomConfig,
    TokenMatchConfig,
)
from rlcore_text.plugin import rlcore_rewards
from rlcore_text.rewards import F1, ExactMatch, Format, LengthRank, Random, TokenMatch


def only(scores: list[Score]) -> Score:
    (score,) = scores
    return score


@pytest.mark.parametrize(
    ("text", "label", "settings", "value"),
    [
        ("4321", "4321", {}, 1.0),
        (" 4321\n", "4321", {}, 1.0),
        (" 4321\n", "4321", {"strip": False}, 0.0),
        ("Paris", "paris", {}, 0.0),
        ("Paris", "paris", {"casefold": True}, 1.0),
        ("42", 42, {}, 1.0),
        ("true", True, {}, 1.0),
        ("blue", ["red", "blue"], {}, 1.0),
        ("", "", {}, 1.0),
        ("4321", "432", {}, 0.0),
        ("<think>\n\n</think>\n\n4321", "4321", {"strip": False}, 1.0),
        ("<think>0</think>4", "<think>4321</think>4", {}, 1.0),
    ],
)
def test_exact_match(text: str, label: Json, settings: dict[str, bool], value: float) -> None:
    assert only(ExactMatch(ExactMatchConfig(**settings)).score([sample(text, label)])).value == value


def test_a_truncated_response_is_no_exact_match() -> None:
    cut = sample("4321", "4321", status=GenerationStatus.TRUNCATED)
    assert only(ExactMatch(ExactMatchConfig()).score([cut])).value == 0.0


@pytest.mark.parametrize(
    ("text", "label", "unit", "value", "hits", "ended"),
    [
        ("4321", "4321", "character", 1.0, 1.0, 1.0),
        ("4320", "4321", "character", 4 / 5, 3 / 4, 1.0),
        ("<think>\n\n</think>\n\n4320", "4321", "character", 4 / 5, 3 / 4, 1.0),
        ("43210", "4321", "character", 4 / 5, 1.0, 0.0),
        ("43", "4321", "character", 2 / 5, 1 / 2, 0.0),
        ("", "4321", "character", 0.0, 0.0, 0.0),
        ("", "", "character", 1.0, 0.0, 1.0),
        ("to  be or not", "to be or", "word", 3 / 4, 1.0, 0.0),
        ("to be", "to do", "word", 2 / 3, 1 / 2, 1.0),
    ],
)
def test_token_match(text: str, label: str, unit: str, value: float, hits: float, ended: float) -> None:
    config = TokenMatchConfig.model_validate({"unit": unit})
    score = only(TokenMatch(config).score([sample(text, label)]))
    assert score.value == pytest.approx(value)
    assert score.parts == {"hits": pytest.approx(hits), "ended": ended}


def test_token_match_gives_a_truncated_response_no_end() -> None:
    cut = sample("4321", "4321", status=GenerationStatus.TRUNCATED)
    assert only(TokenMatch(TokenMatchConfig()).score([cut])).value == pytest.approx(4 / 5)


@pytest.mark.parametrize(
    ("text", "label", "settings", "value", "precision", "recall"),
    [
        ("The Eiffel Tower!", "eiffel tower", {}, 1.0, 1.0, 1.0),
        ("in the tower of London", "tower", {}, 0.4, 0.25, 1.0),
        ("cat cat", "cat", {}, 2 / 3, 1 / 2, 1.0),
        ("dog", "cat", {}, 0.0, 0.0, 0.0),
        ("", "cat", {}, 0.0, 0.0, 0.0),
        ("the", "an", {}, 1.0, 1.0, 1.0),
        ("The cat", "the cat", {"normalize": False}, 0.5, 0.5, 0.5),
        ("a red cat", ["dog", "red cat"], {}, 1.0, 1.0, 1.0),
    ],
)
def test_f1(
    text: str, label: Json, settings: dict[str, bool], value: float, precision: float, recall: float
) -> None:
    """Definition: SQuAD (https://arxiv.org/abs/1606.05250), section 6.1."""
    score = only(F1(F1Config(**settings)).score([sample(text, label)]))
    assert score.value == pytest.approx(value)
    assert score.parts == {"precision": pytest.approx(precision), "recall": pytest.approx(recall)}


@pytest.mark.parametrize("label", [None, {"answer": 4}, [], [None]])
@pytest.mark.parametrize("reward", [ExactMatch(ExactMatchConfig()), F1(F1Config())])
def test_a_label_to_compare_with_is_demanded(label: Json, reward: ExactMatch | F1) -> None:
    with pytest.raises(ValueError, match="label"):
        reward.score([sample("4", label)])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>two\nlines</think>\n<answer>4</answer>", 1.0),
        ("<think>no answer</think>", 0.0),
        ("<think>x</think><answer>4</answer> and more", 0.0),
    ],
)
def test_format(text: str, value: float) -> None:
    assert only(Format(FormatConfig()).score([sample(text)])).value == value


def test_format_without_dotall() -> None:
    reward = Format(FormatConfig(pattern="a.b", dotall=False))
    assert [score.value for score in reward.score([sample("axb"), sample("a\nb")])] == [1.0, 0.0]


def test_a_broken_pattern_is_refused_with_the_settings() -> None:
    with pytest.raises(ValidationError, match="not a regular expression: missing \\)"):
        FormatConfig(pattern="(a")


def test_the_scores_keep_the_order_of_the_samples() -> None:
    scores = ExactMatch(ExactMatchConfig()).score([sample("a", "a"), sample("b", "a"), sample("a", "a")])
    assert [score.value for score in scores] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("lengths", "values"),
    [
        ([3, 1, 2], [0.0, 1.0, 0.5]),
        ([5, 5], [0.5, 0.5]),
        ([1, 1, 4], [0.75, 0.75, 0.0]),
        ([0, 9, 9, 2], [1.0, 1 / 6, 1 / 6, 2 / 3]),
        ([7], [0.5]),
    ],
)
def test_length_rank(lengths: list[int], values: list[float]) -> None:
    group = [sample("", tokens=length, index=index) for index, length in enumerate(lengths)]
    scores = LengthRank(LengthRankConfig()).score(group)
    assert [score.value for score in scores] == pytest.approx(values)


def test_length_rank_needs_siblings() -> None:
    assert LengthRankConfig().needed_group_size() == 2


def test_random_follows_the_seed_and_nothing_else() -> None:
    group = [replace(sample("4", "4"), seed=seed) for seed in range(200)]
    values = [score.value for score in Random(RandomConfig(chance=0.25)).score(group)]
    assert set(values) == {0.0, 1.0}
    assert sum(values) / 200 == pytest.approx(0.25, abs=0.1)
    others = [replace(one, text="other") for one in group]
    assert [score.value for score in Random(RandomConfig(chance=0.25)).score(others)] == values


def test_the_plugin_offers_its_rewards() -> None:
    assert [component.name for component in rlcore_rewards()] == [
        "exact_match",
        "token_match",
        "f1",
        "format",
        "length_rank",
        "random",
    ]
