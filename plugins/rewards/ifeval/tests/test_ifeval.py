# ruff: noqa: RUF001 - letters of other scripts are what this is about
"""The reward `ifeval`: each of the 25 instructions, followed and not."""

from typing import Any, ClassVar

import pytest

from rlcore.api.part import RewardPart
from rlcore.api.types import Json
from rlcore.rollout.score_check import Failure, checked_scores
from rlcore_ifeval.config import IfevalConfig
from rlcore_ifeval.instructions import CHECKS, sentences
from rlcore_ifeval.language import language_of
from rlcore_ifeval.reward import Ifeval
from rlcore_testing.rewards import Case, RewardConformance, sample


def asks(*names: str, **arguments: Json) -> dict[str, Json]:
    return {"instruction_id_list": list(names), "kwargs": [arguments, *({} for _ in names[1:])]}


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
        Case(sample("no", metadata={}), None),
        Case(sample("no", metadata=asks("punctuation:no_coma")), None),
        Case(sample("no", metadata=asks("keywords:existence", words=["no"])), None),
        Case(sample("no", metadata={**COMMA, "kwargs": []}), None),
    )


FOLLOWED: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["moon", "sun"]}, "Sun and MOON", "Sun and stars"),
    ("keywords:frequency", {"keyword": "yes", "frequency": 2, "relation": "at least"}, "Yes yes", "yes"),
    ("keywords:frequency", {"keyword": "yes", "frequency": 2, "relation": "less than"}, "yes", "yes yes"),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "concatenate", "a Cat."),
    (
        "keywords:letter_frequency",
        {"letter": "z", "let_frequency": 3, "let_relation": "at least"},
        "Zzz",
        "zz",
    ),
    ("language:response_language", {"language": "de"}, "Das ist nicht für den Hund.", "This is a dog."),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "less than"},
        "Dr. Who came. He left!",
        "One. Two? Three.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "one\n***\ntwo", "one\n\ntwo"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "it's a dog", "a dog"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "First this.\n\n*Then* that.",
        "First this.\n\nNow that.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name], [city]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP.S. Hello", "Bye. Hello"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye.\nP.P.S. Hello", "Bye. P.S. Hi"),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        "List:\n* one\n- two",
        "* one\n* two\n* three",
    ),
    ("detectable_format:constrained_response", {}, "My answer is maybe.", "Maybe."),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        "*one* and **two**",
        "*one* and ** **",
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\nx\nSection 2\ny",
        "Section 1\nx",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', "{'a': 1}"),
    ("detectable_format:title", {}, "<<Joy>>\nText", "<< >>\nText"),
    ("combination:two_responses", {}, "one ****** two", "one ****** one"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "say hi. Hi!", "Hi! Say hi."),
    ("startend:end_checker", {"end_phrase": "The end."}, "So it was. the end.", "The end. Really."),
    ("startend:quotation", {}, '"All of it."', '"Some" of it.'),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "less than"},
        "one LOUD word",
        "TWO LOUD words",
    ),
    ("change_case:english_capital", {}, "THIS IS THE END", "This is THE END"),
    ("change_case:english_lowercase", {}, "this is the end", "This is the end"),
    ("punctuation:no_comma", {}, "one and two", "one, two"),
]


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), FOLLOWED)
def test_an_instruction(name: str, arguments: dict[str, Any], good: str, bad: str) -> None:
    scores = Ifeval(IfevalConfig()).score(
        [sample(text, metadata=asks(name, **arguments)) for text in (good, bad, "")]
    )
    assert [score.value for score in scores] == [1.0, 0.0, 0.0]


def test_every_instruction_has_such_a_test() -> None:
    assert {name for name, *_ in FOLLOWED} == set(CHECKS)
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


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The cat is on the table and it sleeps.", "en"),
        ("El gato está en la mesa y duerme.", "es"),
        ("O gato não está na mesa, mas dorme.", "pt"),
        ("Le chat est sur la table et il dort.", "fr"),
        ("Il gatto è sul tavolo e non dorme.", "it"),
        ("Kot jest na stole i śpi.", "pl"),
        ("Con mèo đang ngủ trên bàn.", "vi"),
        ("Paka yuko juu ya meza na analala kwa sana.", "sw"),
        ("Kissa on pöydällä ja se nukkuu, mutta ei syö.", "fi"),
        ("Кошка спит на столе, и это хорошо, что мы здесь были.", "ru"),
        ("Кішка спить на столі, і це добре.", "uk"),
        ("Котката спи на масата и това е добре, че са тук.", "bg"),
        ("القط ينام على الطاولة في البيت", "ar"),
        ("گربه روی میز است و این برای ما خوب است", "fa"),
        ("بلی میز پر سو رہی ہے اور یہ اچھا ہے", "ur"),
        ("बिल्ली मेज पर सो रही है और यह अच्छा है", "hi"),
        ("मांजर टेबलावर झोपले आहे आणि ते छान आहे", "mr"),
        ("बिरालो टेबुलमा सुतिरहेको छ र यो राम्रो छ", "ne"),
        ("猫在桌子上睡觉", "zh"),
        ("猫は机の上で寝ています", "ja"),
        ("고양이가 책상 위에서 잔다", "ko"),
        ("แมวนอนบนโต๊ะ", "th"),
        ("పిల్లి బల్ల మీద నిద్రపోతోంది", "te"),
        ("ಬೆಕ್ಕು ಮೇಜಿನ ಮೇಲೆ ಮಲಗಿದೆ", "kn"),
        ("ਬਿੱਲੀ ਮੇਜ਼ ਤੇ ਸੌਂ ਰਹੀ ਹੈ", "pa"),
    ],
)
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
