"""Asynchronous production: staleness, interruption, crashes, partial rollouts, resume."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from rollout_world import World, ids

import rlcore_machine.tasks
from rlcore.api.errors import DataError, PluginError
from rlcore.api.generation import GenerationContext
from rlcore.api.reward import Verdict
from rlcore.api.types import GenerationStatus, Group, Prompt, Sample, Span
from rlcore_sampling.staleness import chosen_batch, oldest, without_stale
from rlcore_single_turn.config import SingleTurnConfig
from rlcore_single_turn.generator import SingleTurn
from rlcore_testing.samples import sample_of
from rlcore_toolkit.request_gate import RequestGate

LIMIT_S = 60.0


def samples(rollout: Any) -> list[Sample]:
    return [sample for group in rollout.groups for sample in group.samples]


async def asked(world: Any, count: int) -> None:
    """Until the engine has been asked so often, and then as long as it might take to be asked again."""
    while len(world.engine.asked) < count:
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(world.engine.asked) == count


def hold_from_the_fifth(world: Any) -> asyncio.Event:
    """Requests of groups 4 to 9 wait."""
    world.engine.hold, world.engine.held = asyncio.Event(), tuple(f"{number}." for number in range(4, 10))
    event: asyncio.Event = world.engine.hold
    return event


@given(
    st.integers(0, 4),
    st.integers(1, 4),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=40, max_size=120),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=60)
def test_whatever_finishes_or_goes_first_no_group_grows_too_old(
    staleness: int, batch: int, events: list[tuple[bool, int]], chance: Random
) -> None:
    """The rule of the stream against random orders: it never waits for ever, and the bound holds."""
    version, running, finished, training, made = 0, list[int](), list[Group](), 0, count()
    for is_batch, which in events:
        room = (staleness + 1) * batch - len(running) - len(finished) - training
        running += [version] * room
        if running:
            finished.append(group_of(next(made), begun=running.pop(which % len(running))))
        if is_batch and training:
            version, training = version + 1, 0
        if training == 0 and len(finished) >= batch:
            chance.shuffle(finished)
            chosen = chosen_batch(finished, running, version, staleness=staleness, batch=batch)
            if chosen is not None:
                assert len(chosen) == batch
                assert all(version - oldest(group) <= staleness for group in chosen)
                finished, training = [group for group in finished if group not in chosen], batch
            else:
                assert running, "when all have finished, a batch can leave"


def group_of(group_id: int, *, begun: int) -> Group:
    prompt = Prompt(prompt_id=f"p{group_id}", text="?")
    sample = sample_of(
        (1,), prompt=prompt, group_id=group_id, log_probs=(-1.0,), spans=(Span(start=0, version=begun),)
    )
    return Group(group_id=group_id, prompt=prompt, samples=(sample,))


def test_what_is_preferred_goes_first_while_the_others_can_wait() -> None:
    waiting = [
        group_of(number, begun=begun) for number, begun in ((5, 2), (4, 2), (3, 2), (2, 1), (1, 1), (0, 0))
    ]

    def chosen(staleness: int) -> list[int] | None:
        batch = chosen_batch(waiting, [], 2, staleness=staleness, batch=2)
        return None if batch is None else [group.group_id for group in batch]

    assert chosen(3) == [5, 4]
    assert chosen(2) == [0, 5]  # 1 and 2 leave with version 3, and 0 would be too old then
    assert chosen(1) is None


class Judging:
    """Prefers the newest groups, or loses one."""

    def __init__(self, *, loses: bool = False) -> None:
        self._loses = loses

    def judge(self, group: Group) -> Verdict:
        return Verdict(group=group)

    def order(self, groups: Sequence[Group], version: int) -> Sequence[Group]:
        return groups[:0:-1] if self._loses else groups[::-1]


@pytest.mark.parametrize("prefers_newest", [False, True])
async def test_a_filter_may_prefer_groups(prefers_newest: bool) -> None:
    filters = [Judging()] if prefers_newest else []
    world = World(prompts=100, max_staleness=3, filters=filters)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 4)) as rollouts:
        first = ids(await anext(rollouts))
        await asked(world, 16)  # all that the run will make
        world.publish(1)
        second = ids(await anext(rollouts))
    left = sorted(set(range(16)) - set(first))
    assert second == (left[-4:] if prefers_newest else left[:4])


async def test_an_order_that_loses_a_group_ends_the_run() -> None:
    world = World(prompts=100, max_staleness=1, filters=[Judging(loses=True)])
    with pytest.raises(PluginError, match=r"^The filter \S*Judging: its order has other groups"):
        async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 4)) as rollouts:
            await anext(rollouts)


async def test_a_slow_group_holds_up_only_the_batch_that_must_have_it() -> None:
    """With two versions of slack the others go first; then the bound is waited for, and kept."""
    world = World(prompts=100, max_staleness=2)
    slow = world.engine.hold = asyncio.Event()
    world.engine.held = ("1.",)
    found = []
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 4)) as rollouts:
        for step in (1, 2):
            found.append(ids(await anext(rollouts)))
            world.publish(step)
        late = asyncio.ensure_future(anext(rollouts))
        for _ in range(300):
            await asyncio.sleep(0)
        assert not late.done()
        slow.set()
        third = await late
    assert found == [[0, 2, 3, 4], [5, 6, 7, 8]]
    assert 1 in ids(third)
    assert third.metrics["rollout/staleness_max"] <= 2


@pytest.mark.parametrize("how", ["abort", "suspended"])
async def test_interrupted_requests_go_on_where_they_were(how: str) -> None:
    world = World(max_staleness=1, on_publish="abort")
    hold_from_the_fifth(world)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 5)) as rollouts:
        await anext(rollouts)
        await asked(world, 8)
        if how == "suspended":
            async with world.producer.suspended():
                state = json.loads(json.dumps(world.producer.state()))
                assert [len(draw["partials"]) for draw in state["buffer"]["draws"]] == [1] * 4
        else:
            async with world.producer.publication(1):
                world.engine.version = 1
        world.engine.hold.set()
        second = await anext(rollouts)
    assert ids(second) == [4, 5, 6, 7]
    continued = [one for one in world.engine.asked if "+" in one[0]]
    by_group = sorted(continued, key=lambda one: one[0].partition(".")[0])  # each group asks in its order
    assert by_group == [(f"{group}.0-0+{index}.2", 1) for group in range(4, 8) for index in range(3)]
    for sample in samples(second):
        assert len(sample.response_ids) == len(sample.log_probs) == 2 + 3 + 2 + 1
        assert sample.text == "".join(str(token) for token in sample.response_ids[:-1])
        assert sample.status is GenerationStatus.COMPLETED
        if how == "abort":
            assert sample.spans == (Span(start=0, version=0), Span(start=2, version=1))
            assert sample.token_versions == (0, 0, 1, 1, 1, 1, 1, 1)
        else:
            assert sample.spans == (Span(start=0, version=0),)
    assert second.metrics["rollout/aborted"] == 0


async def test_wait_lets_requests_end_before_a_publication() -> None:
    world = World(max_staleness=1, on_publish="wait")
    hold = hold_from_the_fifth(world)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 5)) as rollouts:
        await anext(rollouts)
        await asked(world, 8)
        asyncio.get_running_loop().call_later(0.05, hold.set)
        async with world.producer.publication(1):
            assert hold.is_set()
            world.engine.version = 1
        second = await anext(rollouts)
    assert {sample.spans for sample in samples(second)} == {(Span(start=0, version=0),)}


async def test_partial_rollouts_rest_while_the_trainer_works() -> None:
    """Six groups are begun for a batch of four; what is left of them goes on, its old tokens masked."""
    world = World(
        max_staleness=0, partial_rollouts=True, over_sample=1.5, mask_stale_tokens=True, on_publish="abort"
    )
    world.engine.hold, world.engine.held = asyncio.Event(), ("1.", "2.")
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 5)) as rollouts:
        first = await anext(rollouts)
        assert ids(first) == [0, 3, 4, 5]
        await asked(world, 6)
        assert first.metrics["rollout/groups_in_flight"] == 2
        async with world.producer.publication(1):
            world.engine.version = 1
            world.engine.hold, world.engine.held = asyncio.Event(), ("6.", "7.")
        second = await anext(rollouts)
    assert ids(second) == [1, 2, 8, 9]
    for sample in second.groups[0].samples:
        assert sample.loss_mask == (0, 0) + (1,) * (len(sample.response_ids) - 2)
        assert sample.log_probs[:2] == (0.0, 0.0)
    assert second.metrics["rollout/tokens_discarded"] == 0
    assert second.metrics["rollout/staleness_max"] == 1


class Crashing:
    """Fails for group `number`, `times` times; otherwise asks once for each sample."""

    def __init__(self, number: int, times: int) -> None:
        self.number, self.times = number, times

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        if sample.group_id == self.number and sample.attempt < self.times:
            raise OSError("the tool is gone")
        rid = f"{sample.rollout_id}-{sample.attempt}"
        (done,) = await ctx.complete(sample.prompt_ids, seed=sample.seed, rid=rid)
        return replace(
            sample,
            response_ids=done.token_ids,
            loss_mask=(1,) * len(done.token_ids),
            log_probs=done.log_probs,
            text=done.text,
            spans=done.spans,
            status=GenerationStatus.COMPLETED,
        )


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_crash_fails_its_group_and_the_prompt_comes_back(
    caplog: pytest.LogCaptureFixture, max_staleness: int, times: int
) -> None:
    crashing = Crashing(1, times)
    world = World(max_staleness=max_staleness, generator=crashing, max_attempts=3, max_refills=3)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 2)) as rollouts:
        found = []
        for step in (1, 2):
            found.append(await anext(rollouts))
            world.publish(step)
    assert sum(rollout.metrics["rollout/crashed"] for rollout in found) == times
    assert sum(rollout.metrics.get("rollout/groups_dropped/crashed", 0) for rollout in found) == (times == 3)
    given = [number for rollout in found for number in ids(rollout)]
    assert len(given) == 8
    assert (1 in given) == (times < 3)
    assert (
        len([record for record in caplog.records if "OSError: the tool is gone" in record.message]) == times
    )


@pytest.mark.parametrize("options", [{"max_staleness": 1}, {"max_staleness": 8}, {"max_refills": 0}])
@pytest.mark.parametrize("steps", [1, 2, 9])
async def test_a_generator_that_always_crashes_ends_the_run(options: dict[str, int], steps: int) -> None:
    class Broken:
        async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
            raise ZeroDivisionError("mine")

    world = World(**{"max_staleness": 2, **options}, generator=Broken(), prompts=100)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, steps)) as rollouts:
        with pytest.raises(PluginError, match="The generator Broken failed: ZeroDivisionError: mine"):
            await anext(rollouts)


async def test_crashes_of_all_that_began_at_once_are_survived() -> None:
    """A crash takes no time, so the first groups to end are those that crashed."""
    world = World(max_staleness=3, generator=CrashesAtFirst(range(15)), prompts=100)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 4)) as rollouts:
        first = await anext(rollouts)
    assert first.metrics["rollout/crashed"] == 15


class CrashesAtFirst:
    """`SingleTurn` whose first tries of some groups crash, in one moment if `at`: the last group first."""

    def __init__(self, groups: Sequence[int], *, at: asyncio.Event | None = None) -> None:
        self.groups = groups
        self.at = at
        self.inner = SingleTurn(SingleTurnConfig())

    async def generate_group(self, ctx: GenerationContext, samples: Sequence[Sample]) -> list[Sample]:
        group_id = samples[0].group_id
        if group_id in self.groups and samples[0].attempt == 0:
            if self.at is not None:
                for _ in range(self.groups[-1] - group_id):
                    await asyncio.sleep(0)
                await self.at.wait()
            raise OSError("a tool failed")
        return await self.inner.generate_group(ctx, samples)


async def test_a_group_may_begin_anew_before_its_crash_is_told(caplog: pytest.LogCaptureFixture) -> None:
    at = asyncio.Event()
    world = World(max_staleness=1, generator=CrashesAtFirst(range(4), at=at), prompts=100)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 5)) as rollouts:
        asyncio.get_running_loop().call_later(0.05, at.set)
        given = []
        for step in range(1, 6):
            rollout = await anext(rollouts)
            given += ids(rollout)
            left = [rollout.metrics[f"rollout/groups_{place}"] for place in ("in_flight", "waiting")]
            assert sum(left) <= 4
            world.publish(step)
    assert set(given) >= {0, 1, 2, 3}
    assert not [record.message for record in caplog.records if record.levelname == "ERROR"]


async def test_prompts_that_cannot_be_read_any_more_end_the_run() -> None:
    class Damaged(list[Prompt]):
        def __getitem__(self, row: Any) -> Any:
            reads.append(row)
            if len(reads) > 8:
                raise DataError("The file is gone.")
            return super().__getitem__(row)

    reads: list[int] = []
    world = World(max_staleness=1, filters=[KeepNone()])
    world.options["prompts"] = Damaged(world.prompts)
    producer = world.new_producer()
    async with asyncio.timeout(LIMIT_S), aclosing(producer.run(0, 2)) as rollouts:
        with pytest.raises(DataError, match="gone"):
            await anext(rollouts)


async def test_a_door_that_closes_at_once_keeps_out_who_waited() -> None:
    gate = RequestGate([])
    await gate.close(interrupt=True)
    entered = asyncio.Event()

    async def request() -> bool:
        async with gate.request() as is_interrupted:
            entered.set()
            return is_interrupted()

    waiting = asyncio.ensure_future(request())
    await asyncio.sleep(0)
    gate.open()
    await gate.close(interrupt=True)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not entered.is_set()
    gate.open()
    assert not await asyncio.wait_for(waiting, LIMIT_S)


class Canceling:
    """`SingleTurn` whose group 1 gives up a task of its own, and does not notice that this raises here."""

    def __init__(self) -> None:
        self.inner = SingleTurn(SingleTurnConfig())

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        if sample.group_id == 1 and sample.attempt == 0:
            task = asyncio.ensure_future(asyncio.sleep(LIMIT_S))
            task.cancel()
            await task
        return await self.inner.generate(ctx, sample)


class CancelingGroups(Canceling):
    """The same, for generators of whole groups."""

    async def generate_group(self, ctx: GenerationContext, samples: Sequence[Sample]) -> list[Sample]:
        return [await self.generate(ctx, sample) for sample in samples]


@pytest.mark.parametrize("kind", [Canceling, CancelingGroups])
@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_a_cancellation_that_nobody_asked_for_is_a_crash(
    caplog: pytest.LogCaptureFixture, max_staleness: int, kind: type[Canceling]
) -> None:
    world = World(max_staleness=max_staleness, generator=kind())
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 2)) as rollouts:
        found = []
        for step in (1, 2):
            found.append(await anext(rollouts))
            world.publish(step)
    assert sum(rollout.metrics["rollout/crashed"] for rollout in found) == 1
    assert 1 in [number for rollout in found for number in ids(rollout)]
    assert "failed: CancelledError" in caplog.text


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_a_generator_that_swallows_its_cancellation_is_stopped(
    monkeypatch: pytest.MonkeyPatch, max_staleness: int
) -> None:
    class Deaf:
        async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
            try:
                await asyncio.sleep(2 * LIMIT_S)
            except asyncio.CancelledError:
                deaf.add(sample.group_id)
                await asyncio.sleep(2 * LIMIT_S)
            raise AssertionError("it was never to end")

    deaf = set[int]()
    monkeypatch.setattr(rlcore_machine.tasks, "CANCEL_AGAIN_S", 0.05)
    world = World(max_staleness=max_staleness, group_size=1, generator=Deaf())
    before = asyncio.all_tasks()
    async with asyncio.timeout(LIMIT_S):
        async with aclosing(world.producer.run(0, 2)) as rollouts:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(rollouts)
    groups = range(4 * (max_staleness + 1))
    assert deaf == set(groups)
    assert asyncio.all_tasks() == before
    assert [draw["group_id"] for draw in world.producer.state()["buffer"]["draws"]] == list(groups)


class KeepNone:
    def judge(self, group: Group) -> Verdict:
        return Verdict(group=None, reason="never")


async def test_refills_have_an_end() -> None:
    world = World(prompts=100, max_staleness=1, filters=[KeepNone()], max_refills=2)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 2)) as rollouts:
        first = await anext(rollouts)
    assert first.groups == ()
    assert first.metrics["rollout/groups_missing"] == 4
    assert first.metrics["rollout/groups_dropped/never"] >= 12


async def test_evaluation_beside_generation() -> None:
    world = World(max_staleness=1)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 3)) as rollouts:
        await anext(rollouts)
        world.publish(1)
        evaluating = asyncio.ensure_future(world.evaluate(world.prompts[:6]))
        second = await anext(rollouts)
        assert (await evaluating).score == 1
    assert ids(second) == [4, 5, 6, 7]


async def test_a_resumed_run_goes_on_from_what_was_sampled() -> None:
    """In flight, waiting and in the cursor: everything is given once, and no token is sampled again."""
    world = World(max_staleness=1)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 5)) as rollouts:
        await anext(rollouts)
        await asked(world, 8)
        world.publish(1)
        world.engine.hold = asyncio.Event()
        await asked(world, 12)
        async with world.producer.suspended():
            state = json.loads(json.dumps(world.producer.state()))
    assert [group["group_id"] for group in state["buffer"]["groups"]] == [4, 5, 6, 7]
    assert [draw["group_id"] for draw in state["buffer"]["draws"]] == [8, 9, 10, 11]
    world.engine.hold, world.engine.asked = None, []
    resumed = world.new_producer()
    resumed.load(state)
    world.producer = resumed
    world.publish(1)
    given = []
    async with asyncio.timeout(LIMIT_S), aclosing(resumed.run(1, 5)) as rollouts:
        async for rollout in rollouts:
            given += ids(rollout)
            if rollout.step == 3:
                assert all(len(sample.response_ids) == 2 + 3 + 2 + 1 for sample in samples(rollout))
            world.publish(rollout.step)
    assert given == list(range(4, 20))
    assert {rid for rid, _ in world.engine.asked if rid.startswith("8.")} == {
        f"8.0-0+{i}.2" for i in range(3)
    }


async def test_what_is_too_old_at_resume_is_generated_again() -> None:
    world = World(max_staleness=1)
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 5)) as rollouts:
        await anext(rollouts)
        await asked(world, 8)
        async with world.producer.suspended():
            state = json.loads(json.dumps(world.producer.state()))
    late = world.producer = world.new_producer()
    late.load(state)
    world.publish(2)
    async with asyncio.timeout(LIMIT_S), aclosing(late.run(2, 5)) as rollouts:
        again = await anext(rollouts)
    assert ids(again) == [4, 5, 6, 7]
    assert {sample.attempt for sample in samples(again)} == {1}
    assert again.metrics["rollout/tokens_discarded"] == 4 * 3 * 4


def test_stale_tokens_are_left_out_by_the_weights_that_made_them() -> None:
    sample = sample_of(
        (1, 2, 3, 4),
        prompt=World().prompts[0],
        loss_mask=(1, 1, 0, 1),
        log_probs=(-1.0, -2.0, 0.0, -4.0),
        spans=(Span(start=0, version=3), Span(start=1, version=5)),
    )
    (found,) = without_stale(Group(group_id=0, prompt=sample.prompt, samples=(sample,)), 4).samples
    assert (found.loss_mask, found.log_probs) == ((0, 1, 0, 1), (0.0, -2.0, 0.0, -4.0))
