"""The data buffer loses and doubles nothing, and its state is JSON that gives everything back."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rlcore import GenerationStatus, Group, Prompt, RewardStatus, RunError, Score, Span
from rlcore_sampling.buffer import BufferedDraw, DataBuffer, groups_from_json, groups_to_json
from rlcore_testing.samples import sample_of

TEXT = Prompt(prompt_id="p", text="t", label={"a": [1, None]}, metadata={"k": 0.1})
CHAT = Prompt(prompt_id="c", text=({"role": "user", "content": "u"},))


def draw(group_id: int) -> BufferedDraw:
    return BufferedDraw(group_id=group_id, prompt=TEXT, epoch=1)


def group(group_id: int, prompt: Prompt = TEXT) -> Group:
    sample = sample_of(
        (3,),
        prompt=prompt,
        prompt_ids=(1, 2),
        group_id=group_id,
        attempt=2,
        seed=5,
        log_probs=(-0.1234567890123456789,),
        text="x\u00e9",
        spans=(Span(start=0, version=4),),
        status=GenerationStatus.COMPLETED,
        reward_status=RewardStatus.SCORED,
        score=Score(value=1 / 3, per_token=(1 / 3,), parts={"a": 1.0}),
        extras={"depth": 3},
    )
    return Group(group_id=group_id, prompt=prompt, samples=(sample,), epoch=1)


@pytest.mark.parametrize("prompt", [TEXT, CHAT], ids=["text", "chat"])
def test_groups_survive_json(prompt: Prompt) -> None:
    groups = (group(0, prompt), group(1, prompt))
    found = groups_from_json(json.loads(json.dumps(groups_to_json(groups))))
    assert groups_to_json(found) == groups_to_json(groups)
    assert list(found[0].prompt.text) == list(prompt.text)
    # A chat comes back as a list of messages, where it was a tuple.
    assert found[0].samples == groups[0].samples or prompt is CHAT


def test_arrays_among_the_extras_survive_json() -> None:
    first = group(0)
    sample = first.samples[0].but(
        extras={"depth": np.float32(3), "patches": np.ones((0, 2)), "mark": np.arange(2)}
    )
    groups = [replace(first, samples=(sample,))]
    (found,) = groups_from_json(json.loads(json.dumps(groups_to_json(groups))))
    assert found.samples[0].extras == {"depth": 3.0, "patches": [], "mark": [0, 1]}


def test_the_oldest_goes_first() -> None:
    buffer = DataBuffer(8)
    buffer.start([draw(number) for number in (3, 1, 2, 0)])
    buffer.give_back()
    assert [found.group_id for found in buffer.restart(3)] == [0, 1, 2]
    buffer.finish([group(2), group(0)])
    assert [found.group_id for found in buffer.waiting()] == [0, 2]


def test_it_is_bounded() -> None:
    buffer = DataBuffer(2)
    buffer.start([draw(0), draw(1)])
    with pytest.raises(RunError, match="would hold 3 groups; 2 is its bound"):
        buffer.start([draw(2)])


def test_what_is_too_old_is_drawn_again() -> None:
    buffer = DataBuffer(2)
    buffer.start([draw(0)])
    buffer.finish([group(0)])
    buffer.expire(buffer.waiting())
    (again,) = buffer.restart(1)
    assert (again.group_id, again.attempt, again.epoch, again.prompt) == (0, 3, 1, TEXT)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["start", "back", "again", "finish", "drop", "take", "save"]))))
def test_conservation(actions: list[tuple[str]]) -> None:
    """Whatever happens, each draw that did not leave is still there, once."""
    buffer, present, flying, ready, number = DataBuffer(10_000), set[int](), list[int](), list[int](), 0
    for (action,) in actions:
        if action == "start":
            buffer.start([draw(number), draw(number + 1)])
            flying += [number, number + 1]
            present |= {number, number + 1}
            number += 2
        elif action == "back":
            buffer.give_back()
            flying.clear()
        elif action == "again":
            flying += [found.group_id for found in buffer.restart(1)]
        elif action == "finish" and flying:
            buffer.finish([group(flying[-1])])
            ready.append(flying.pop())
        elif action == "drop" and flying:
            buffer.drop(flying[-1])
            present.remove(flying.pop())
        elif action == "take" and ready:
            buffer.take([ready[-1]])
            present.remove(ready.pop())
        elif action == "save":
            state = json.loads(json.dumps(buffer.state()))
            buffer = DataBuffer(10_000)
            buffer.load(state)
            flying.clear()
        state = buffer.state()
        held = [found["group_id"] for found in [*state["draws"], *state["groups"]]]
        assert sorted(held) == sorted(present)
        assert len(buffer) == len(present)
