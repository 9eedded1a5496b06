"""What becomes of aborted, refused, unscored and stale samples."""

import json

import pytest
from rollout_world import World, ids

from rlcore import EngineError, PluginError, Prompt, RewardStatus, RunError, StaleWeightsError


@pytest.mark.parametrize("reason", ["abort", "refused"])
async def test_a_bad_generation_is_tried_once_more(reason: str) -> None:
    world = World()
    world.engine.endings["1.0-0"] = world.refused() if reason == "refused" else reason
    rollout = await world.producer.rollout(1)
    assert ids(rollout) == [0, 1, 2, 3]
    assert {sample.attempt for sample in rollout.groups[1].samples} == {1}
    assert {sample.attempt for sample in rollout.groups[0].samples} == {0}
    name = "failed" if reason == "refused" else "aborted"
    assert rollout.metrics[f"rollout/{name}"] == 3
    assert rollout.metrics["rollout/groups_dropped"] == 0


@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_prompt_that_is_too_long_is_left_out_with_a_sentence(
    caplog: pytest.LogCaptureFixture, staleness: int
) -> None:
    """As are those behind the ones that are checked before the run."""
    prompts = [Prompt(prompt_id=f"p{i}", text="0" * (4 if i == 2 else 3), label="0") for i in range(8)]
    world = World(prompts=prompts, max_staleness=staleness, prompts_per_step=7)
    rollouts = [rollout async for rollout in world.producer.run(0, 1)]
    assert "p2" not in {group.prompt.prompt_id for group in rollouts[0].groups}
    assert rollouts[0].metrics["rollout/groups"] == 7
    assert rollouts[0].metrics["rollout/groups_dropped/unfit_prompt"] >= 1
    sentence = "The prompt 'p2' has 4 tokens; --max-prompt-tokens allows 3. It is left out."
    assert sentence in caplog.messages


async def test_twice_bad_drops_the_group() -> None:
    world = World()
    world.engine.endings |= {"1.0-0": "abort", "1.0-1": world.refused()}
    rollout = await world.producer.rollout(1)
    assert ids(rollout) == [0, 2, 3, 4]
    assert rollout.metrics["rollout/groups_dropped/failed"] == 1
    assert (rollout.metrics["rollout/aborted"], rollout.metrics["rollout/failed"]) == (3, 3)


async def test_all_refused_ends_the_run() -> None:
    world = World()
    world.engine.all_refused = world.refused()
    with pytest.raises(EngineError, match="refused the request"):
        await world.producer.rollout(1)
    with pytest.raises(EngineError, match="refused the request"):
        await world.evaluate(world.prompts)


async def test_a_dead_engine_ends_the_run_and_loses_no_prompt() -> None:
    world = World()
    calm = await World().producer.rollout(1)
    world.engine.endings["2.0-0"] = world.dead()
    with pytest.raises(EngineError, match="cannot be reached"):
        await world.producer.rollout(1)
    state = json.loads(json.dumps(world.producer.state()))
    assert [draw["group_id"] for draw in state["buffer"]["draws"]] == [0, 1, 2, 3]
    world.engine.endings.clear()
    resumed = world.new_producer()
    resumed.load(state)
    assert (await resumed.rollout(1)).groups == calm.groups


@pytest.mark.parametrize("status", [RewardStatus.FAILED, RewardStatus.TIMED_OUT])
async def test_an_unscored_group_is_scored_once_more(status: RewardStatus) -> None:
    world = World()
    world.rewards.unscored = {1: [status], 2: [status, status]}
    rollout = await world.producer.rollout(1)
    assert ids(rollout) == [0, 1, 3, 4]
    assert world.rewards.calls[1] == world.rewards.calls[2] == 2
    assert rollout.metrics[f"rollout/reward_{status}"] == 3
    assert rollout.metrics[f"rollout/groups_dropped/reward_{status}"] == 1


async def test_rewards_that_never_give_a_score_end_the_run() -> None:
    world = World()
    world.rewards.unscored = {number: [RewardStatus.FAILED] * 2 for number in range(99)}
    with pytest.raises(PluginError, match="The rewards give no score: failed"):
        await world.producer.rollout(1)
    world = World()
    world.rewards.unscored = {number: [RewardStatus.FAILED] * 2 for number in range(99) if number % 3}
    assert (await world.producer.rollout(1)).groups


async def test_rewards_that_have_given_a_score_may_fail_for_a_while() -> None:
    """Not for as many draws as a rollout takes with all its refills: 4, three times."""
    world = World()
    world.rewards.unscored = {number: [RewardStatus.FAILED] * 2 for number in range(4, 4 + 11)}
    await world.producer.rollout(1)
    second = await world.producer.rollout(2)
    assert (len(second.groups), second.metrics["rollout/reward_failed"]) == (1, 2 * 11)
    world.rewards.unscored = {number: [RewardStatus.FAILED] * 2 for number in range(999)}
    with pytest.raises(RunError, match="The rewards give no score: failed"):
        await world.producer.rollout(3)


async def test_stale_weights_are_noticed() -> None:
    world = World(engines=2)
    world.publish(3)
    world.engines[1].version = 2
    with pytest.raises(StaleWeightsError, match="generated with weight version 2, expected 3"):
        await world.producer.rollout(1)
    with pytest.raises(StaleWeightsError):
        await world.evaluate(world.prompts)
