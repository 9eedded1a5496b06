"""One rollout: order, sessions, filters, refills, and what a generator may do."""

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rollout_world import KeepOdd, World, ids

from rlcore.api.errors import NotFiniteError, PluginError, StaleWeightsError
from rlcore.api.generation import GenerationContext
from rlcore.api.reward import Verdict
from rlcore.api.types import GenerationStatus, Group, RewardStatus, Sample, Sampling, Span
from rlcore.rollout.context import sampling_of
from rlcore_sampling.tally import COUNTED, Tally

LIMIT_S = 30.0


def timeless(metrics: Any) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


async def test_a_rollout() -> None:
    world = World()
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


async def test_arrival_order_never_reaches_the_numbers() -> None:
    one, other = World(engines=2, filters=[KeepOdd()]), World(engines=2, filters=[KeepOdd()])
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


async def test_groups_go_to_engines_by_their_place() -> None:
    world = World(engines=2)
    await world.producer.rollout(1)
    asked = [sorted(rid.split(".")[0] for rid, _ in engine.asked) for engine in world.engines]
    assert asked == [["0", "2"], ["1", "3"]]


async def test_first_requests_of_a_round_are_one_session_of_each_engine() -> None:
    world = World(engines=3)
    world.engines[1].endings["1.0-0"] = "abort"
    await world.producer.rollout(1)
    await world.evaluate(world.prompts[:1])
    assert [engine.sessions for engine in world.engines] == [
        ["1/2", "1/2", "eval-1/1"],
        ["1/1", None],
        ["1/1"],
    ]


async def test_a_session_fits_the_requests_in_flight() -> None:
    world = World(engine_concurrency=3)
    assert ids(await world.producer.rollout(1)) == [0, 1, 2, 3]
    assert world.engine.sessions == ["1/3"] * 3 + ["2/1"]


class Picky:
    """Answers groups without a request where their number is odd."""

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        raise AssertionError("groups only")

    async def generate_group(self, ctx: GenerationContext, samples: list[Sample]) -> list[Sample]:
        if samples[0].group_id % 2:
            spans = (Span(start=0, version=0),)
            return [replace(s, text="7", spans=spans, status=GenerationStatus.COMPLETED) for s in samples]
        return [await Odd().generate(ctx, sample) for sample in samples]


async def test_a_group_without_a_request_holds_up_nobody() -> None:
    world = World(generator=Picky())
    async with asyncio.timeout(LIMIT_S):
        assert ids(await world.producer.rollout(1)) == [0, 1, 2, 3]
    assert sorted(map(str, world.engine.sessions)) == ["1/2", "1/2", *["None"] * 4]


async def test_no_session_where_nothing_waits_for_it() -> None:
    world = World(generator=Odd())
    await world.producer.rollout(1)
    assert set(world.engine.sessions) == {None}


class Shorten:
    """Keeps two samples of a group."""

    def judge(self, group: Group) -> Verdict:
        return Verdict(group=replace(group, samples=group.samples[:2]))


async def test_filters_and_refills() -> None:
    world = World(filters=[KeepOdd(), Shorten()], max_refills=3)
    rollout = await world.producer.rollout(1)
    assert ids(rollout) == [1, 3, 5, 7]
    assert all(len(group.samples) == 2 for group in rollout.groups)
    metrics = rollout.metrics
    # Rounds of 4, 2, 1 and 1 prompts.
    assert metrics["rollout/groups_dropped/even"] == metrics["rollout/groups_dropped"] == 4
    assert (metrics["rollout/refills"], metrics["rollout/groups_missing"]) == (3, 0)
    assert metrics["rollout/samples"] == 24, "means are over what was scored, filters apart"


async def test_refills_have_an_end() -> None:
    rollout = await World(filters=[KeepOdd()], max_refills=1).producer.rollout(1)
    assert ids(rollout) == [1, 3, 5]
    assert (rollout.metrics["rollout/refills"], rollout.metrics["rollout/groups_missing"]) == (1, 1)


class KeepNone:
    def judge(self, group: Group) -> Verdict:
        return Verdict(group=None)


async def test_no_useful_group_is_said() -> None:
    world = World(filters=[KeepNone()])
    rollout = await world.producer.rollout(1)
    assert rollout.groups == ()
    assert rollout.metrics["rollout/groups_missing"] == 4
    assert rollout.metrics["rollout/groups_dropped/filtered"] == 12
    assert world.producer.state()["buffer"] == {"draws": [], "groups": []}


async def later(group: Group) -> Verdict:
    return Verdict(group=group)


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        (lambda group: None, "returned None; expected a Verdict."),
        (lambda group: True, "returned True; expected a Verdict."),
        (later, "returned a coroutine; expected a Verdict."),
        (lambda group: Verdict(group=group.samples), "in its verdict, returned a tuple; expected a Group or"),
    ],
)
async def test_a_filter_that_returns_no_verdict_is_told(judge: Callable[[Group], Any], message: str) -> None:
    world = World(filters=[SimpleNamespace(judge=judge, _rlcore_name="mine")])
    with pytest.raises(PluginError, match=re.escape(message)) as caught:
        await world.producer.rollout(1)
    assert "The filter 'mine'" in str(caught.value)


class Odd:
    """A generator of single samples that does what `change` says."""

    def __init__(self, **change: Any) -> None:
        self.change = change

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        (done,) = await ctx.complete(sample.prompt_ids, seed=sample.seed, rid=sample.rollout_id)
        right = {"status": GenerationStatus.COMPLETED, "spans": done.spans, "text": done.text}
        tokens = {
            "response_ids": done.token_ids,
            "log_probs": done.log_probs,
            "loss_mask": (1,) * len(done.token_ids),
        }
        return replace(sample, **{**tokens, **right, **self.change})


class Split:
    """Each trajectory becomes two samples; the second one holds one turn more."""

    async def generate(self, ctx: GenerationContext, sample: Sample) -> list[Sample]:
        first = await Odd().generate(ctx, sample)
        prompt = sample.prompt_ids + ctx.encode("7")
        return [first, await Odd().generate(ctx, replace(sample, prompt_ids=prompt))]


async def test_split_trajectories() -> None:
    world = World(generator=Split())
    group = (await world.producer.rollout(1)).groups[0]
    assert [sample.rollout_id for sample in group.samples] == ["0.0", "0.0", "0.1", "0.1", "0.2", "0.2"]
    assert len(world.engine.asked) == 24
    result = await world.evaluate(world.prompts[:3])
    assert len(result.samples) == 6


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"spans": ()}, PluginError, r"Odd returned sample \d\.\d with no spans"),
        (
            {"status": "stop"},
            PluginError,
            r"sample \d\.\d with 'stop' as its status; expected a Gener",
        ),
        ({"text": None}, PluginError, "with None as its text; expected a text"),
        ({"metrics": [1]}, PluginError, "with a list as its metrics; expected a mapping of names to numbers"),
        ({"metrics": {"a": "2"}}, PluginError, "with '2' as its metric 'a'; expected a number"),
        (
            {"response_ids": (1, 99, 2, 1)},
            PluginError,
            "with the token 99; expected ids of the model",
        ),
        ({"response_ids": (1, -5, 2, 1)}, PluginError, "with the token -5; expected"),
        ({"log_probs": (-1.0, math.nan, -1, -1)}, NotFiniteError, "Odd returned sample .* not finite"),
        ({"loss_mask": (1,)}, PluginError, "4 response tokens, 1 masks and 4 log-probs; expected as many"),
        ({"spans": (Span(start=1, version=0),)}, PluginError, r"spans that start at \[1\]; expected 0"),
        ({"status": GenerationStatus.PENDING}, PluginError, "with the status PENDING"),
        ({"rollout_id": "x"}, PluginError, "returned sample x with a rollout_id of its own; expected"),
        ({"spans": (Span(start=0, version=0), Span(start=1, version=1))}, StaleWeightsError, "version 1"),
        ({"spans": (Span(start=0, version=0, policy="x"),)}, PluginError, r"live tokens of 'x'; expected"),
        (
            {"spans": (Span(start=0, version=0), Span(start=1, version=0, policy="x"))},
            PluginError,
            "live tokens of '' and 'x'; expected those of one policy",
        ),
    ],
)
async def test_what_a_generator_may_not_do(change: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        await World(generator=Odd(**change), vocabulary=99).producer.rollout(1)


async def test_a_fault_of_a_generator_is_told_as_one_of_the_plugin() -> None:
    class Broken:
        async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
            raise ZeroDivisionError("mine")

    with pytest.raises(
        PluginError,
        match=r"The generator Broken failed: ZeroDivisionError: mine \(.*test_producer\.py, line \d+\)",
    ):
        await World(generator=Broken()).producer.rollout(1)


def test_sampling_follows_the_run() -> None:
    world = World(temperature=0.5, top_k=3, max_response_tokens=7, stop=("x",))
    expected = Sampling(max_tokens=7, temperature=0.5, top_k=3, stop=("x",))
    assert sampling_of(world.run) == expected


def test_a_rollout_of_groups_that_waited_counts_as_any_other() -> None:
    """None of its draws ended since the last one."""
    rest = Tally().split([], [])
    assert {f"rollout/{name}" for name in (*COUNTED, "crashed")} <= rest.metrics().keys()
