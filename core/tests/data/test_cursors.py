"""Mixes and the curriculum: exact proportions, preferred prompts, and the same rest after a resume."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rlcore import CheckpointError, Cursor, Portion, Prompt, Prompts, RunConfig, SourceMix
from rlcore.data.cursors import CurriculumCursor, MixCursor, PromptCursor, cursor_of


def prompts(name: str, count: int) -> list[Prompt]:
    return [Prompt(prompt_id=f"{name}/row-{number}", text="t") for number in range(count)]


def mix(weights: dict[str, float], count: int = 7) -> SourceMix:
    return SourceMix(
        [Portion(name=name, weight=w, prompts=prompts(name, count)) for name, w in weights.items()]
    )


def ids(taken: list[tuple[Prompt, int]]) -> list[tuple[str, int]]:
    return [(prompt.prompt_id, epoch) for prompt, epoch in taken]


def again(state: dict[str, Any]) -> Any:
    return json.loads(json.dumps(state))


@settings(deadline=None)
@given(
    weights=st.lists(st.floats(0.05, 20), min_size=1, max_size=4),
    takes=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    resumed=st.sets(st.integers(0, 7)),
)
def test_a_mix_keeps_its_proportions_and_its_place(
    weights: list[float], takes: list[int], resumed: set[int]
) -> None:
    named = {f"s{i}": weight for i, weight in enumerate(weights)}
    run = RunConfig.of(seed=3)
    steady, broken = cursor_of(mix(named), run), cursor_of(mix(named), run)
    dealt: list[tuple[str, int]] = []
    for number, size in enumerate(takes):
        taken = steady.take(size)
        if number in resumed:
            state = again(broken.state())
            broken = cursor_of(mix(named), run)
            broken.load(state)
        assert broken.take(size) == taken
        dealt += ids(taken)
    assert len(set(dealt)) == len(dealt) == sum(takes)
    counts = Counter(prompt_id.partition("/")[0] for prompt_id, _ in dealt)
    for name, weight in named.items():
        share = weight / sum(weights) * len(dealt)
        assert counts[name] < share + 1 + 1e-9
        assert counts[name] > share - max(len(weights) - 1, 1) - 1e-9


def test_each_source_of_a_mix_has_epochs_of_its_own() -> None:
    cursor = cursor_of(mix({"a": 3, "b": 1}, count=6), RunConfig())
    epochs = Counter(epoch for prompt_id, epoch in ids(cursor.take(24)) if prompt_id.startswith("a"))
    assert epochs == {0: 6, 1: 6, 2: 6}
    assert cursor.metrics() == {"rollout/epoch": 3, "rollout/epoch/a": 3, "rollout/epoch/b": 1}


def test_a_mix_of_other_weights_is_refused() -> None:
    state = again(cursor_of(mix({"a": 3, "b": 1}), RunConfig()).state())
    with pytest.raises(CheckpointError, match="weights were"):
        cursor_of(mix({"a": 1, "b": 1}), RunConfig()).load(state)


def curriculum(count: int = 400, floor: float = 0.1, seed: int = 0) -> CurriculumCursor:
    return CurriculumCursor(PromptCursor(prompts("p", count), seed), seed, floor, solved_at=1.0)


def rate_of(prompt: Prompt) -> float:
    """A third of the prompts is always solved, a third never, a third half the time."""
    return (0.0, 0.5, 1.0)[int(prompt.prompt_id.partition("-")[2]) % 3]


def learn(cursor: Cursor, taken: list[tuple[Prompt, int]]) -> None:
    for prompt, _ in taken:
        rate = rate_of(prompt)
        cursor.learn(prompt.prompt_id, [float(rate > 0), float(rate == 1)])


def test_the_first_epoch_draws_every_prompt_and_later_ones_prefer_the_middle() -> None:
    cursor = curriculum()
    first = cursor.take(400)
    assert len(set(ids(first))) == 400
    assert cursor.metrics() == {"rollout/epoch": 1.0, "rollout/prompts_skipped": 0}
    learn(cursor, first)
    counts = Counter(rate_of(prompt) for prompt, _ in cursor.take(1000))
    # Of the prompts passed, each third has chance 0.1, 1 and 0.1.
    assert counts[0.5] / 1000 == pytest.approx(1 / 1.2, abs=0.04)
    assert counts[0.0] / 1000 == pytest.approx(0.1 / 1.2, abs=0.04)
    assert counts[1.0] > 0
    assert cursor.metrics()["rollout/prompts_skipped"] > 500


def test_a_curriculum_repeats_and_resumes() -> None:
    steady, broken = curriculum(60), curriculum(60)
    for number in range(30):
        taken = steady.take(9)
        learn(steady, taken)
        if number % 7 == 3:
            state = again(broken.state())
            broken = curriculum(60)
            broken.load(state)
        found = broken.take(9)
        learn(broken, found)
        assert found == taken
    assert broken.metrics() == steady.metrics()
    assert ids(curriculum(60, seed=1).take(9)) != ids(curriculum(60).take(9))


def test_the_newest_result_counts_half() -> None:
    cursor = curriculum(3)
    for success in (0.0, 1.0, 1.0):
        cursor.learn("p/row-1", [success])
    assert cursor.state()["rates"] == {"p/row-1": 0.75}


def test_a_curriculum_in_a_mix_learns_of_its_own_prompts() -> None:
    run = RunConfig.of(curriculum=True, curriculum_floor=0.5)
    cursor = cursor_of(mix({"a": 1, "b": 1}), run)
    assert isinstance(cursor, MixCursor)
    cursor.learn("b/row-3", [1.0])
    parts = cursor.state()["parts"]
    assert (parts["a"]["rates"], parts["b"]["rates"]) == ({}, {"b/row-3": 1.0})
    assert "rollout/prompts_skipped" in cursor.metrics()


def test_a_state_without_a_curriculum_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no curriculum"):
        curriculum().load(again(PromptCursor(prompts("p", 400), 0).state()))


def test_rows_read_together_are_dealt_together() -> None:
    class Blocked(list[Prompt]):
        blocks = (4, 3, 5)

    found = Blocked(prompts("p", 12))
    runs = [range(4), range(4, 7), range(7, 12)]
    block_of = {number: block for block, run in enumerate(runs) for number in run}
    orders = []
    cursor = PromptCursor(found, 0)
    for _ in range(4):
        numbers = [int(prompt_id.partition("-")[2]) for prompt_id, _ in ids(cursor.take(12))]
        assert sorted(numbers) == list(range(12))
        blocks = [block_of[number] for number in numbers]
        assert sum(a != b for a, b in pairwise(blocks)) == 2
        orders.append(tuple(numbers))
    assert len(set(orders)) == 4


class Growing:
    """A source whose numbers get one digit longer once a prompt is solved."""

    def prompts(self) -> Prompts:
        return Prompts(train=prompts("g", 2))

    def cursor(self, prompts: Sequence[Prompt], seed: int) -> "GrowingCursor":
        return GrowingCursor(len(prompts))


class GrowingCursor:
    def __init__(self, digits: int) -> None:
        self.digits, self.taken = digits, 0

    def take(self, n: int) -> list[tuple[Prompt, int]]:
        self.taken += n
        ids = [f"g/{self.taken - n + number}-{self.digits}" for number in range(n)]
        return [(Prompt(prompt_id=one, text="t"), 0) for one in ids]

    def learn(self, prompt_id: str, rewards: Sequence[float]) -> None:
        self.digits += int(prompt_id.endswith(f"-{self.digits}") and min(rewards) > 0)

    def metrics(self) -> dict[str, float]:
        return {"rollout/epoch": 0.0, "rollout/digits": self.digits}

    def state(self) -> dict[str, Any]:
        return {"digits": self.digits, "taken": self.taken}

    def load(self, state: Mapping[str, Any]) -> None:
        self.digits, self.taken = state["digits"], state["taken"]


@pytest.mark.parametrize("with_curriculum", [False, True])
def test_a_source_may_say_what_is_drawn_and_learn_from_the_rewards(with_curriculum: bool) -> None:
    run = RunConfig.of(curriculum=with_curriculum)
    cursor = cursor_of(Growing().prompts().train, run, Growing())
    assert ids(cursor.take(2)) == [("g/0-2", 0), ("g/1-2", 0)]
    cursor.learn("g/0-2", [1.0, 0.0])
    cursor.learn("g/1-2", [1.0, 0.5])
    resumed = cursor_of(Growing().prompts().train, run, Growing())
    resumed.load(again(cursor.state()))
    for one in (cursor, resumed):
        assert ids(one.take(1)) == [("g/2-3", 0)]
        assert one.metrics()["rollout/digits"] == 3
