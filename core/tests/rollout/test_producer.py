"""The producer: order, refills, the policies on what failed, versions, resume."""

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from rlcore.errors import DataError, EngineError, PluginError, StaleWeightsError
from rlcore.interfaces import GenerationContext, Verdict
from rlcore.types import GenerationStatus, Group, Prompt, RewardStatus, Sample, Sampling, Span

MakeWorld = Callable[..., Any]
LIMIT_S = 30.0


def ids(rollout: Any) -> list[int]:
    return [group.group_id for group in rollout.groups]


def timeless(metrics: Any) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


async def test_a_rollout(make_world: MakeWorld) -> None:
    world = make_world()
    rollout = await world.producer.rollout(1)
    assert ids(rollout) == [0, 1, 2, 3]
    assert (rollout.step, rollout.version) == (1, 0)
    group = rollout.groups[1]
    assert [sample.rollout_id for sample in group.samples] == ["1.0", "1.1", "1.2"]
    assert len({sample.seed for sample in group.samples}) == 3
    assert all(sample.reward_status is RewardStatus.SCORED for sample in group.samples)
    assert all(sample.loss_mask == (1, 1, 1, 1) for sample in group.samples)
    assert sorted(world.engine.asked) == [("0.0-0", 3), ("1.0-0", 3), ("2.0-0", 3), ("3.0-0", 3)]
    rewards = [sample.score.value for group in rollout.groups for sample in group.samples]
    metrics = rollout.metrics
    assert metrics["rollout/reward_mean"] == pytest.approx(sum(rewards) / 12)
    assert metrics["reward/last"] == metrics["rollout/reward_mean"]
    assert metrics["rollout/response_tokens"] == 48
    assert metrics["rollout/prompt_tokens"] == 36
    assert metrics["rollout/response_length_mean"] == 4
    assert metrics["rollout/groups"] == 4
    assert all(metrics[f"rollout/{name}"] == 0 for name in ("truncated", "aborted", "failed", "refills"))
    assert all(isinstance(value, int | float) for value in metrics.values())


async def test_arrival_order_never_reaches_the_numbers(make_world: MakeWorld) -> None:
    one, other = make_world(engines=2, filters=[KeepOdd()]), make_world(engines=2, filters=[KeepOdd()])
    other.rewards.score = slowed(other.rewards.score)
    first, second = await one.producer.rollout(1), await other.producer.rollout(1)
    assert first.groups == second.groups
    assert timeless(first.metrics) == timeless(second.metrics)


def slowed(score: Any) -> Any:
    """The earlier a group, the later its score."""

    async def later(samples: list[Sample]) -> Any:
        for _ in range(50 - samples[0].group_id):
            await asyncio.sleep(0)
        return await score(samples)

    return later


async def test_groups_go_to_engines_by_their_number(make_world: MakeWorld) -> None:
    world = make_world(engines=2)
    await world.producer.rollout(1)
    asked = [sorted(rid.split(".")[0] for rid, _ in engine.asked) for engine in world.engines]
    assert asked == [["0", "2"], ["1", "3"]]


class KeepOdd:
    """Drops groups with an even id."""

    def judge(self, group: Group) -> Verdict:
        return Verdict(group=group) if group.group_id % 2 else Verdict(group=None, reason="even")


class Shorten:
    """Keeps two samples of a group."""

    def judge(self, group: Group) -> Verdict:
        return Verdict(group=replace(group, samples=group.samples[:2]))


async def test_filters_and_refills(make_world: MakeWorld) -> None:
    world = make_world(filters=[KeepOdd(), Shorten()], max_refills=3)
    rollout = await world.producer.rollout(1)
    assert ids(rollout) == [1, 3, 5, 7]
    assert all(len(group.samples) == 2 for group in rollout.groups)
    metrics = rollout.metrics
    # Rounds of 4, 2, 1 and 1 prompts.
    assert metrics["rollout/groups_dropped/even"] == metrics["rollout/groups_dropped"] == 4
    assert (metrics["rollout/refills"], metrics["rollout/groups_missing"]) == (3, 0)
    assert metrics["rollout/samples"] == 24, "means are over what was scored, filters apart"


async def test_refills_have_an_end(make_world: MakeWorld) -> None:
    rollout = await make_world(filters=[KeepOdd()], max_refills=1).producer.rollout(1)
    assert ids(rollout) == [1, 3, 5]
    assert (rollout.metrics["rollout/refills"], rollout.metrics["rollout/groups_missing"]) == (1, 1)


class KeepNone:
    def judge(self, group: Group) -> Verdict:
        return Verdict(group=None)


async def test_no_useful_group_is_said(make_world: MakeWorld) -> None:
    world = make_world(filters=[KeepNone()])
    rollout = await world.producer.rollout(1)
    assert rollout.groups == ()
    assert rollout.metrics["rollout/groups_missing"] == 4
    assert rollout.metrics["rollout/groups_dropped/filtered"] == 12
    assert world.producer.state()["buffer"] == {"draws": [], "groups": []}


@pytest.mark.parametrize("reason", ["abort", "refused"])
async def test_a_bad_generation_is_tried_once_more(make_world: MakeWorld, reason: str) -> None:
    world = make_world()
    world.engine.endings["1.0-0"] = world.refused() if reason == "refused" else reason
    rollout = await world.producer.rollout(1)
    assert ids(rollout) == [0, 1, 2, 3]
    assert {sample.attempt for sample in rollout.groups[1].samples} == {1}
    assert {sample.attempt for sample in rollout.groups[0].samples} == {0}
    name = "failed" if reason == "refused" else "aborted"
    assert rollout.metrics[f"rollout/{name}"] == 3
    assert rollout.metrics["rollout/groups_dropped"] == 0


async def test_twice_bad_drops_the_group(make_world: MakeWorld) -> None:
    world = make_world()
    world.engine.endings |= {"1.0-0": "abort", "1.0-1": world.refused()}
    rollout = await world.producer.rollout(1)
    assert ids(rollout) == [0, 2, 3, 4]
    assert rollout.metrics["rollout/groups_dropped/failed"] == 1
    assert (rollout.metrics["rollout/aborted"], rollout.metrics["rollout/failed"]) == (3, 3)


async def test_all_refused_ends_the_run(make_world: MakeWorld) -> None:
    world = make_world()
    world.engine.all_refused = world.refused()
    with pytest.raises(EngineError, match="refused the request"):
        await world.producer.rollout(1)
    with pytest.raises(EngineError, match="refused the request"):
        await world.producer.evaluate(world.prompts)


async def test_a_dead_engine_ends_the_run_and_loses_no_prompt(make_world: MakeWorld) -> None:
    world = make_world()
    calm = await make_world().producer.rollout(1)
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
async def test_an_unscored_group_is_scored_once_more(make_world: MakeWorld, status: RewardStatus) -> None:
    world = make_world()
    world.rewards.unscored = {1: [status], 2: [status, status]}
    rollout = await world.producer.rollout(1)
    assert ids(rollout) == [0, 1, 3, 4]
    assert world.rewards.calls[1] == world.rewards.calls[2] == 2
    assert rollout.metrics[f"rollout/reward_{status}"] == 3
    assert rollout.metrics[f"rollout/groups_dropped/reward_{status}"] == 1


async def test_stale_weights_are_noticed(make_world: MakeWorld) -> None:
    world = make_world(engines=2)
    world.publish(3)
    world.engines[1].version = 2
    with pytest.raises(StaleWeightsError, match="generated with weight version 2, expected 3"):
        await world.producer.rollout(1)
    with pytest.raises(StaleWeightsError):
        await world.producer.evaluate(world.prompts)


class Odd:
    """A generator of single samples that does what `change` says."""

    def __init__(self, **change: Any) -> None:
        self.change = change

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        (done,) = await ctx.complete(sample.prompt_ids, seed=sample.seed, rid=sample.rollout_id)
        right = {"status": GenerationStatus.COMPLETED, "spans": done.spans, "text": done.text}
        tokens = {"response_ids": done.token_ids, "log_probs": done.log_probs, "loss_mask": (1,) * len(done.token_ids)}
        return replace(sample, **{**tokens, **right, **self.change})


class Split:
    """Each trajectory becomes two samples; the second one holds one turn more."""

    async def generate(self, ctx: GenerationContext, sample: Sample) -> list[Sample]:
        first = await Odd().generate(ctx, sample)
        prompt = sample.prompt_ids + ctx.encode("7")
        return [first, await Odd().generate(ctx, replace(sample, prompt_ids=prompt))]


async def test_split_trajectories(make_world: MakeWorld) -> None:
    world = make_world(generator=Split())
    group = (await world.producer.rollout(1)).groups[0]
    assert [sample.rollout_id for sample in group.samples] == ["0.0", "0.0", "0.1", "0.1", "0.2", "0.2"]
    assert len(world.engine.asked) == 24
    result = await world.producer.evaluate(world.prompts[:3])
    assert len(result.samples) == 6


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"spans": ()}, StaleWeightsError, "does not say which weights"),
        ({"loss_mask": (1,)}, PluginError, "Odd returned 4 response tokens with 1 masks and 4 log-probs"),
        ({"status": GenerationStatus.PENDING}, PluginError, "as pending"),
        ({"rollout_id": "x"}, PluginError, "returned sample 'x'"),
        ({"spans": (Span(start=0, version=0), Span(start=1, version=1))}, StaleWeightsError, "version 1"),
    ],
)
async def test_what_a_generator_may_not_do(
    make_world: MakeWorld, change: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await make_world(generator=Odd(**change)).producer.rollout(1)


async def test_an_error_of_a_generator_is_raised_as_it_is(make_world: MakeWorld) -> None:
    class Broken:
        async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        await make_world(generator=Broken()).producer.rollout(1)


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


async def test_a_prompt_that_is_too_long(make_world: MakeWorld) -> None:
    world = make_world(max_prompt_tokens=2)
    with pytest.raises(DataError, match="has 3 tokens; max_prompt_tokens allows 2"):
        await world.producer.rollout(1)


async def test_resume_continues_where_it_was(make_world: MakeWorld) -> None:
    world = make_world(prompts=7, filters=[KeepOdd()])
    await world.producer.rollout(1)
    state = json.loads(json.dumps(world.producer.state()))
    resumed = world.new_producer()
    resumed.load(state)
    expected = await world.producer.rollout(2)
    found = await resumed.rollout(2)
    assert found.groups == expected.groups
    assert timeless(found.metrics) == timeless(expected.metrics)


# --- producer and consumer -----------------------------------------------------------------------------


async def test_synchronous_run_generates_nothing_between_two_questions(make_world: MakeWorld) -> None:
    world = make_world()
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(2, 5)) as rollouts:
        steps = []
        async for rollout in rollouts:
            steps.append((rollout.step, rollout.version))
            asked = len(world.engine.asked)
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(world.engine.asked) == asked == 4 * len(steps)
            assert world.producer.state()["buffer"] == {"draws": [], "groups": []}
            world.publish(rollout.version + 1)
    assert steps == [(3, 0), (4, 1), (5, 2)]


async def test_run_raises_the_producers_error(make_world: MakeWorld) -> None:
    world = make_world()
    world.engine.endings["5.0-0"] = world.dead()
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 5)) as rollouts:
        await anext(rollouts)
        with pytest.raises(EngineError, match="cannot be reached"):
            await anext(rollouts)


async def test_an_early_end_gives_the_prompts_back(make_world: MakeWorld) -> None:
    world = make_world(max_staleness=1)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 5)) as rollouts:
        await anext(rollouts)
        world.engine.hold = asyncio.Event()
        while len(world.engine.asked) < 8:
            await asyncio.sleep(0)
    draws = world.producer.state()["buffer"]["draws"]
    assert [draw["group_id"] for draw in draws] == [4, 5, 6, 7]


@pytest.mark.parametrize("staleness", [1, 2])
async def test_staleness_is_a_number(make_world: MakeWorld, staleness: int) -> None:
    world = make_world(prompts=100, max_staleness=staleness)
    seen: list[int] = []
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 8)) as rollouts:
        async for rollout in rollouts:
            seen += ids(rollout)
            version = rollout.step - 1
            assert max(0, version - staleness) <= rollout.version <= version
            ahead = 4 * min(rollout.step + staleness, 8)
            while len(world.engine.asked) < ahead:
                await asyncio.sleep(0)
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(world.engine.asked) == ahead
            world.publish(rollout.step)
    assert seen == list(range(32)), "no prompt is lost or doubled"


async def test_rollouts_in_store_survive_a_restart(make_world: MakeWorld) -> None:
    world = make_world(max_staleness=1)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 5)) as rollouts:
        await anext(rollouts)
        while len(world.producer.state()["buffer"]["groups"]) < 4:
            await asyncio.sleep(0)
        world.publish(1)
        state = json.loads(json.dumps(world.producer.state()))
    resumed = world.new_producer()
    resumed.load(state)
    resumed.published(1)
    asked = len(world.engine.asked)
    assert ids(await resumed.rollout(2)) == [4, 5, 6, 7]
    assert len(world.engine.asked) == asked
    late = world.new_producer()
    late.load(state)
    world.engine.version = 2
    late.published(2)
    again = await late.rollout(2)
    assert ids(again) == [4, 5, 6, 7]
    assert {sample.attempt for group in again.groups for sample in group.samples} == {1}


async def test_a_rollout_that_is_too_old_is_refused(make_world: MakeWorld) -> None:
    world = make_world(max_staleness=1)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 5)) as rollouts:
        await anext(rollouts)
        while len(world.producer.state()["buffer"]["groups"]) < 4:
            await asyncio.sleep(0)
        world.publish(2)
        with pytest.raises(StaleWeightsError, match="2 weight versions old; max_staleness allows 1"):
            await anext(rollouts)


def test_sampling_follows_the_run(make_world: MakeWorld) -> None:
    world = make_world(temperature=0.5, top_k=3, max_response_tokens=7, stop=("x",))
    expected = Sampling(max_tokens=7, temperature=0.5, top_k=3, stop=("x",))
    assert world.producer.sampling == expected
