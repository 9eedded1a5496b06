"""The greedy response beside a group: what it is for, how it is asked for, and what its failure costs."""

import asyncio

import pytest
from rollout_world import World

from rlcore import EngineError, Group, GroupOutcome, Input, Prompt, RewardStatus, Sample, Score
from rlcore.rollout.batch import to_batch
from rlcore_sampling.baseline import with_baseline

LIMIT_S = 30.0


async def test_its_reward_is_known_to_the_samples() -> None:
    """The engine repeats the prompt where it is greedy, so the last digit of the prompt is its reward."""
    world, plain = World(baseline=True), World()
    rollout, expected = await world.producer.rollout(1), await plain.producer.rollout(1)
    for group, same in zip(rollout.groups, expected.groups, strict=True):
        reward = int(group.prompt.text[-1]) / 10
        assert [sample.extras for sample in group.samples] == [{Input.GREEDY_REWARD: reward}] * 3
        assert [sample.response_ids for sample in group.samples] == [s.response_ids for s in same.samples]
    asked = sorted(world.engine.asked)
    assert asked == [
        *((f"{number}.0-0", 3) for number in range(4)),
        *((f"greedy-{number}.0-0", 1) for number in range(4)),
    ]
    assert set(world.engine.sessions) == {"1/8"}, "all begin together, so that a run repeats"
    rewards = [int(group.prompt.text[-1]) / 10 for group in rollout.groups]
    metrics = dict(rollout.metrics)
    assert metrics.pop("rollout/greedy_reward_mean") == pytest.approx(sum(rewards) / 4)
    others = {name for name in metrics if not name.startswith("time/")}
    assert {name: metrics[name] for name in others} == {name: expected.metrics[name] for name in others}
    column = to_batch(rollout.groups, minibatches=1, version=0).per_sample[Input.GREEDY_REWARD]
    assert column.tolist() == pytest.approx([reward for reward in rewards for _ in range(3)])


def test_rewards_of_tokens_are_summed() -> None:
    """The baseline is the return of the greedy response, as the samples' own returns are sums of tokens."""

    def outcome(*scores: Score) -> GroupOutcome:
        prompt = Prompt(prompt_id="p", text="?")
        samples = tuple(
            Sample(prompt=prompt, prompt_ids=(1,), group_id=0, index=i, rollout_id=str(i), score=score)
            for i, score in enumerate(scores)
        )
        made = Group(group_id=0, prompt=prompt, samples=samples)
        return GroupOutcome(group=made, reason=None, aborted=0, failed=0, generated=0.0)

    greedy = outcome(Score(value=9.0, per_token=(0.5, 1.0)), Score(value=3.0))
    known = with_baseline(outcome(Score(value=0.0), Score(value=1.0)), greedy)
    assert [sample.extras for sample in known.group.samples] == [{Input.GREEDY_REWARD: 2.25}] * 2


async def test_an_evaluation_has_none() -> None:
    world = World(baseline=True)
    result = await world.evaluate(world.prompts[:2])
    assert sorted(rid for rid, _ in world.engine.asked) == ["eval-0.0-0", "eval-1.0-0"]
    assert not any(sample.extras for sample in result.samples)


@pytest.mark.parametrize(("concurrency", "engines", "sessions"), [(5, 1, {"1/4", "2/4"}), (1, 2, {None})])
async def test_a_session_fits_the_requests_in_flight(
    concurrency: int, engines: int, sessions: set[str | None]
) -> None:
    world = World(baseline=True, engine_concurrency=concurrency, engines=engines)
    async with asyncio.timeout(LIMIT_S):
        rollout = await world.producer.rollout(1)
    assert [group.group_id for group in rollout.groups] == [0, 1, 2, 3]
    assert {session for engine in world.engines for session in engine.sessions} == sessions


async def test_without_its_reward_the_group_is_dropped() -> None:
    world = World(baseline=True, max_refills=0)
    for attempt in range(2):
        world.engine.endings[f"greedy-0.0-{attempt}"] = "abort"
    world.engine.endings["greedy-1.0-0"] = "abort"  # generated once more
    world.engine.endings["2.0-0"] = world.engine.endings["2.0-1"] = "abort"
    world.rewards.unscored[3] = [RewardStatus.TIMED_OUT]
    rollout = await world.producer.rollout(1)
    assert [group.group_id for group in rollout.groups] == [1, 3]
    assert rollout.metrics["rollout/groups_dropped/greedy_aborted"] == 1
    assert rollout.metrics["rollout/groups_dropped/aborted"] == 1
    assert rollout.metrics["rollout/aborted"] == 2 + 1 + 6


async def test_an_engine_that_refuses_ends_the_run() -> None:
    world = World(baseline=True)
    for number in range(4):
        for attempt in range(2):
            world.engine.endings[f"greedy-{number}.0-{attempt}"] = world.refused()
    with pytest.raises(EngineError, match="refused"):
        await world.producer.rollout(1)


async def test_asynchronous_runs_have_it_too() -> None:
    world = World(baseline=True, max_staleness=1)
    async with asyncio.timeout(LIMIT_S):
        rollouts = world.producer.run(0, 1)
        rollout = await anext(rollouts)
        await rollouts.aclose()
    for group in rollout.groups:
        reward = int(group.prompt.text[-1]) / 10
        assert [sample.extras for sample in group.samples] == [{Input.GREEDY_REWARD: reward}] * 3
