"""The reward `ifeval`: each of the 25 instructions, followed and not."""

import tomllib
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlcore import Json, RewardPart
from rlcore.rollout.score_check import Failure, checked_scores
from rlcore_ifeval.config import IfevalConfig
from rlcore_ifeval.instructions import CHECKS, sentences
from rlcore_ifeval.language import language_of
from rlcore_ifeval.reward import Ifeval
from rlcore_testing.rewards import Case, RewardConformance, sample


def asks(*names: str, **arguments: Json) -> dict[str, Json]:
    return {"instruction_id_list": list(names), "kwargs": [arguments, *({} for _ in names[1:])]}


TEXTS = tomllib.loads(Path(__file__).with_name("ifeval.toml").read_text())
COMMA = asks("punctuation:no_comma")
BOTH = asks("keywords:existence", "punctuation:no_comma", keywords=["moon"], relation=None)


class TestIfeval(RewardConformance):
    part = RewardPart(name="ifeval", factory="rlcore_ifeval.reward:Ifeval", config=IfevalConfig())
    parts = frozenset({"followed", "all"})
    cases: ClassVar = (
        Case(sample("The Moon rises.", metadata=BOTH), 1.0),
        Case(sample("The sun rises.", metadata=BOTH), 0.5),
        Case(sample("The sun, it rises.", metadata=BOTH), 0.0),
        Case(sample("no", metadata=COMMA), 1.0),
        Case(sample("<think>Well, no</think>\n\nno", metadata=COMMA), 1.0),
        Case(sample("no", metadata={}), None),
        Case(sample("no", metadata=asks("punctuation:no_coma")), None),
        Case(sample("no", metadata=asks("keywords:existence", words=["no"])), None),
        Case(sample("no", metadata={**COMMA, "kwargs": []}), None),
    )


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), TEXTS["followed"])
def test_an_instruction(name: str, arguments: dict[str, Any], good: str, bad: str) -> None:
    scores = Ifeval(IfevalConfig()).score(
        [sample(text, metadata=asks(name, **arguments)) for text in (good, bad, "")]
    )
    assert [score.value for score in scores] == [1.0, 0.0, 0.0]


def test_every_instruction_has_such_a_test() -> None:
    assert {name for name, *_ in TEXTS["followed"]} == set(CHECKS)
    assert len(CHECKS) == 25


def test_all_or_nothing() -> None:
    [score] = Ifeval(IfevalConfig(value="all")).score([sample("The sun rises.", metadata=BOTH)])
    assert score.value == 0.0
    assert score.parts == {"followed": 0.5, "all": 0.0}


@pytest.mark.parametrize(
    "text", ["Sure, here it is:\nno comma", "no comma\nYours, me", "Sure,\nno comma\nme, again"]
)
def test_loose_leaves_first_and_last_lines_out(text: str) -> None:
    strict, loose = (Ifeval(IfevalConfig(loose=on)) for on in (False, True))
    assert strict.score([sample(text, metadata=COMMA)])[0].value == 0.0
    assert loose.score([sample(text, metadata=COMMA)])[0].value == 1.0


@pytest.mark.parametrize(("language", "text"), TEXTS["languages"].items())
def test_a_language_is_told_from_the_others(text: str, language: str) -> None:
    others = ["en", "de", "ru", "ar", "hi", "zh"]
    assert {language_of(text, expected) for expected in [language, *others]} == {language}


def test_an_unknown_language_is_no_score() -> None:
    metadata = asks("language:response_language", language="tlh")
    [outcome] = checked_scores(Ifeval(IfevalConfig()), [sample("nuqneH", metadata=metadata)])
    assert isinstance(outcome, Failure)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("no end", 1),
        ("One. Two! Three?", 3),
        ("It costs 3.50 dollars.", 1),
        ('He said "go." Then left.', 2),
    ],
)
def test_sentences(text: str, count: int) -> None:
    assert sentences(text) == count
