"""Evaluation: greedy, counted over all prompts, without a trace."""

from collections.abc import Callable
from typing import Any

import pytest

from rlcore.errors import DataError
from rlcore.types import Prompt

MakeWorld = Callable[..., Any]
LIMIT_S = 30.0


def ids(rollout: Any) -> list[int]:
    return [group.group_id for group in rollout.groups]


async def test_evaluation_is_greedy_and_leaves_no_trace(make_world: MakeWorld) -> None:
    world = make_world(engines=2)
    state = world.producer.state()
    prompts = [*world.prompts[:3], Prompt(prompt_id="wrong", text="123", label="321")]
    result = await world.producer.evaluate(prompts)
    assert result.exact_match == 0.75
    assert result.reward == pytest.approx((0 + 1 + 2 + 3) / 40)
    assert [sample.text for sample in result.samples] == ["000", "001", "002", "123"]
    assert result.metrics["unscored"] == result.metrics["truncated"] == 0
    assert result.metrics["reward/last"] == result.reward
    assert world.producer.state() == state
    with pytest.raises(DataError, match="no prompts"):
        await world.producer.evaluate([])


async def test_evaluation_counts_what_failed_as_wrong(make_world: MakeWorld) -> None:
    world = make_world()
    world.engine.endings = {"eval-0.0-0": "abort", "eval-0.0-1": "abort", "eval-1.0-0": "length"}
    result = await world.producer.evaluate(world.prompts[:4])
    assert (result.exact_match, result.metrics["unscored"], result.metrics["truncated"]) == (0.5, 0.25, 0.25)
