"""Which teacher scores which prompt."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rlcore import DataError, Group, Input, Prompt, RunConfig
from rlcore.rollout.scoring import ScoringEngines, check_scored
from rlcore_testing.samples import sample_of


class Scorer:
    """Gives each token the same log-prob."""

    def __init__(self, value: float) -> None:
        self.value = value

    async def score(self, token_ids: Sequence[int], *, start: int) -> Sequence[float]:
        return [self.value] * (len(token_ids) - start)


def prompt(prompt_id: str, **metadata: Any) -> Prompt:
    return Prompt(prompt_id=prompt_id, text="t", metadata=metadata)


def group(of: Prompt) -> Group:
    sample = sample_of((2, 3), prompt=of)
    return Group(group_id=0, prompt=of, samples=(sample,))


def scored(teacher: ScoringEngines, *prompts: Prompt) -> list[float]:
    groups = asyncio.run(teacher.score([group(one) for one in prompts]))
    return [one.samples[0].extras[Input.TEACHER_LOG_PROBS.value][0] for one in groups]


def test_metadata_say_the_teacher_or_else_the_source_or_the_one_without_a_name() -> None:
    teacher = ScoringEngines({"math": Scorer(-1.0), "code": Scorer(-2.0), "": Scorer(-3.0)})
    prompts = [
        prompt("math/row-1"),
        prompt("code/row-1", teacher="math"),
        prompt("code/row-2"),
        prompt("row-3"),
        prompt("chat/row-4"),
    ]
    assert scored(teacher, *prompts) == [-1.0, -1.0, -2.0, -3.0, -3.0]


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (prompt("row-3"), "'row-3' has no teacher in its metadata; expected one of 'code', 'math'"),
        (prompt("math/1", teacher="art"), "'math/1' has the teacher 'art' in its metadata; expected one of"),
    ],
)
def test_a_prompt_without_a_teacher(one: Prompt, said: str) -> None:
    with pytest.raises(DataError, match=said):
        check_scored(["math", "code"], [prompt("math/0"), one])


def test_a_teacher_that_is_no_name() -> None:
    """Of a prompt that is drawn after those that are looked at before the start."""
    teacher = ScoringEngines({"math": Scorer(-1.0), "code": Scorer(-2.0)})
    said = r"has the teacher \['math'\] in its metadata; expected one of 'code', 'math'"
    with pytest.raises(DataError, match=said):
        scored(teacher, prompt("math/1", teacher=["math"]))


def test_a_teacher_is_named_where_the_only_one_has_no_name() -> None:
    said = "has the teacher 'art' in its metadata; expected none: --teacher.url has no name."
    with pytest.raises(DataError, match=said):
        check_scored([""], [prompt("row-3", teacher="art")])


def test_one_teacher_needs_no_name() -> None:
    assert RunConfig.of(**{"teacher.url": "http://a:1"}).teacher.urls == {"": "http://a:1"}
    check_scored([""], [prompt("row-3")])
    check_scored([], [prompt("row-3", teacher="art")])
    run = RunConfig.of(**{"teacher.m.url": "frozen:x", "teacher.url": "http://a:1/?b=c"})
    assert run.teacher.urls == {"": "http://a:1/?b=c", "m": "frozen:x"}
    assert run.scoring_urls == {"--teacher.url": "http://a:1/?b=c", "--teacher.m.url": "frozen:x"}
