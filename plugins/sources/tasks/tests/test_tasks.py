"""Procedural tasks: right answers, and two sets that cannot overlap."""

import pytest

from rlcore.api.errors import DataError
from rlcore_tasks.config import AddConfig, DigitsConfig
from rlcore_tasks.tasks import Add, Copy, DigitsTask, Reverse, Sort, Task, distinct


@pytest.mark.parametrize(("task", "answer"), [(Copy, "3102"), (Reverse, "2013"), (Sort, "0123")])
def test_digits(task: type[DigitsTask], answer: str) -> None:
    assert task(DigitsConfig()).pose(3102) == ("3102", answer)


def test_add() -> None:
    assert Add(AddConfig(digits=2)).pose(795) == ("07+95", "102")
    assert Add(AddConfig(digits=2)).pose(102) == ("01+02", "003")


@pytest.mark.parametrize(
    "task",
    [Copy(DigitsConfig()), Reverse(DigitsConfig()), Sort(DigitsConfig()), Add(AddConfig())],
    ids=lambda task: task.name,
)
def test_sets(task: Task) -> None:
    found = task.prompts()
    held_out = found.held_out[task.name]
    train_texts, held_texts = {p.text for p in found.train}, {p.text for p in held_out}
    assert len(train_texts) == len(found.train)
    assert len(held_texts) == len(held_out)
    assert not train_texts & held_texts
    assert len(found.train) + len(held_out) == 10_000
    assert 0.18 < len(held_out) / 10_000 < 0.22
    assert len({p.prompt_id for p in [*found.train, *held_out]}) == 10_000
    assert len({len(p.label) for p in found.train}) == 1


def test_sets_repeat_and_follow_the_split_seed() -> None:
    one, same = Copy(DigitsConfig()).prompts(), Copy(DigitsConfig()).prompts()
    other = Copy(DigitsConfig(split_seed=1)).prompts()
    assert one == same
    assert {p.text for p in one.train} != {p.text for p in other.train}


def test_size_moves_no_prompt_to_the_other_side() -> None:
    small, large = Copy(DigitsConfig(size=500)).prompts(), Copy(DigitsConfig()).prompts()
    assert {p.text for p in small.train} <= {p.text for p in large.train}
    assert {p.text for p in small.held_out["copy"]} <= {p.text for p in large.held_out["copy"]}


@pytest.mark.parametrize("space", [10, 100, 401, 10**18])
def test_distinct(space: int) -> None:
    numbers = distinct(space, 100, seed=0)
    assert len(set(numbers)) == len(numbers) == min(space, 100)
    assert all(0 <= number < space for number in numbers)


def test_the_longest_task() -> None:
    found = Reverse(DigitsConfig(digits=18, size=100)).prompts()
    assert all(len(p.label) == 18 for p in found.train)


def test_a_side_without_prompts() -> None:
    with pytest.raises(DataError, match="both must have some"):
        Copy(DigitsConfig(size=2, held_out=0.001)).prompts()


def test_a_task_knows_the_answers() -> None:
    task = Reverse(DigitsConfig(digits=3, size=50))
    found = task.with_responses()
    assert found.train[0].responses == (found.train[0].text[2::-1],)
    assert found.held_out == task.prompts().held_out
