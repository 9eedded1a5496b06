"""The cursor deals every prompt once an epoch, whatever the batch sizes and wherever it is resumed."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from rlcore import CheckpointError, Prompt
from rlcore.data.cursors import PromptCursor


def prompts(count: int) -> list[Prompt]:
    return [Prompt(prompt_id=str(number), text="t") for number in range(count)]


@settings(deadline=None)
@given(
    count=st.integers(1, 30),
    takes=st.lists(st.integers(0, 40), max_size=12),
    resumed=st.sets(st.integers(0, 11)),
    seed=st.integers(0, 2**31 - 1),
)
def test_no_prompt_is_lost_or_doubled(count: int, takes: list[int], resumed: set[int], seed: int) -> None:
    steady, broken = PromptCursor(prompts(count), seed), PromptCursor(prompts(count), seed)
    dealt: list[tuple[str, int]] = []
    for number, size in enumerate(takes):
        taken = steady.take(size)
        assert len(taken) == size
        if number in resumed:
            state = json.loads(json.dumps(broken.state()))
            broken = PromptCursor(prompts(count), seed)
            broken.load(state)
        assert broken.take(size) == taken
        dealt += [(prompt.prompt_id, epoch) for prompt, epoch in taken]
    assert len(set(dealt)) == len(dealt)
    epochs = [epoch for _, epoch in dealt]
    assert epochs == sorted(epochs)
    sizes = Counter(epochs)
    assert all(sizes[epoch] == count for epoch in range(max(epochs, default=0)))


def test_order_follows_seed_and_epoch() -> None:
    def order(seed: int) -> list[str]:
        return [prompt.prompt_id for prompt, _ in PromptCursor(prompts(50), seed).take(100)]

    assert order(0) == order(0)
    assert order(0) != order(1)
    assert order(0)[:50] != order(0)[50:]
    assert order(0)[:3] == ["11", "3", "20"], "the order must not change with a release"


def test_epoch_counts_passes() -> None:
    cursor = PromptCursor(prompts(4), 0)
    cursor.take(5)
    assert cursor.metrics() == {"rollout/epoch": 1.25}


@pytest.mark.parametrize(
    ("count", "seed", "name"), [(4, 0, "prompts was 3, is 4"), (3, 1, "seed was 0, is 1")]
)
def test_state_of_other_data_is_refused(count: int, seed: int, name: str) -> None:
    state = PromptCursor(prompts(3), 0).state()
    with pytest.raises(CheckpointError, match=name):
        PromptCursor(prompts(count), seed).load(state)


def test_without_a_shuffle_the_order_is_that_of_the_source() -> None:
    cursor = PromptCursor(prompts(3), 7, shuffle=False)
    assert [prompt.prompt_id for prompt, _ in cursor.take(7)] == ["0", "1", "2", "0", "1", "2", "0"]
