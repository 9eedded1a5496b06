"""Engines that share the trainer's devices: what the loop tells them, and when, by a clock of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import run_of

from rlcore import Group, Prompt, RewardStatus, Rollout, Score, Span, WeightsLocation
from rlcore.preparation.prepare import prepare
from rlcore.preparation.prepared import Prepared
from rlcore.preparation.run_state import RunState
from rlcore.runtime.handover import Handover, State
from rlcore.runtime.loop import Loop
from rlcore.tracking.trackers import Trackers
from rlcore.workers.train_worker import UpdateResult
from rlcore_testing.display import SilentDisplay
from rlcore_testing.samples import sample_of
from rlcore_testing.tensors import scored

LIMIT_S = 60.0
STEPS = 2


class Diary:
    """What happened at which tick; as producer, engines and trainer of a loop."""

    samples = True
    data_parallel = 1
    terminating = False
    replaced = 0

    def __init__(self) -> None:
        self.told_to_end = asyncio.Event()
        self._clock = count()
        self.entries: list[tuple[int, str]] = []

    def note(self, what: str) -> None:
        self.entries.append((next(self._clock), what))

    async def run(self, step: int, steps: int) -> AsyncIterator[Rollout]:
        metrics = {"time/rollout_s": 0.0, "rollout/response_tokens": 2.0}
        for number in range(step + 1, steps + 1):
            self.note("generate")
            yield Rollout(step=number, version=number - 1, groups=(_group(number),), metrics=metrics)

    async def drain(self) -> None:
        self.note("drain")

    async def release(self, *, keep_weights: bool = False) -> None:
        self.note("release, but for weights" if keep_weights else "release")

    async def resume(self) -> None:
        self.note("resume")

    async def sleep(self, what: str) -> int:
        self.note(f"sleep {what}")
        return len(what)

    async def wake(self) -> None:
        self.note("wake")

    async def update(self, shares: Any, *, version: int, **_: Any) -> UpdateResult:
        self.note("train")
        location = WeightsLocation(directory="/nowhere", version=version, checksums={})
        return UpdateResult(metrics={}, location=location, write_seconds=0.0)

    async def publish(self, location: Any, *, keep_cache: bool = False) -> None:
        self.note("publish")

    @asynccontextmanager
    async def publication(self, version: int) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        yield

    def state(self) -> dict[str, Any]:
        return {}

    def take_metrics(self) -> dict[str, float]:
        return {}

    async def write(self, folder: Path) -> None:
        """Nothing to write."""

    async def stage(self, roles: Any) -> None:
        self.note("stage")


def _group(number: int) -> Group:
    prompt = Prompt(prompt_id=str(number), text="")
    sample = sample_of(
        (2, 3),
        prompt=prompt,
        group_id=number,
        log_probs=(-1.0, -1.0),
        spans=(Span(start=0, version=number - 1),),
        reward_status=RewardStatus.SCORED,
        score=Score(value=1.0),
    )
    return Group(group_id=number, prompt=prompt, samples=(sample,))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    flags = {"steps": str(STEPS), "minibatches": "1"}
    return prepare(run_of("grpo", flags), tmp_path_factory.mktemp("run"), None)


LENT = ["drain", "release", "wake", "train"]
SAVED = ["drain", "release, but for weights", "wake", "stage"]


@pytest.mark.parametrize(
    ("sleep", "step", "saved"),
    [
        ("none", ["drain", "release", "train", "publish", "resume"], ["stage"]),
        (
            "optimizer",
            [*LENT, "sleep optimizer", "publish", "sleep optimizer", "resume"],
            [*SAVED, "sleep optimizer", "resume"],
        ),
        (
            "all",
            [*LENT, "sleep publish", "publish", "sleep all", "resume"],
            [*SAVED, "sleep all", "resume"],
        ),
    ],
)
def test_trainer_and_engines_take_turns(
    prepared: Prepared, sleep: str, step: list[str], saved: list[str]
) -> None:
    """The last step is saved: engines, which rest then, keep their weights."""
    diary: Any = Diary()
    state = RunState(step=0, version=0, producer={}, model={})
    parts = dict.fromkeys(("producer", "trainer", "engines", "stop"), diary)
    trackers = Trackers({}, SilentDisplay())
    run = replace(prepared, resolved=replace(prepared.resolved, run=prepared.resolved.run.but(sleep=sleep)))
    loop = Loop(prepared=run, state=state, trackers=trackers, **parts)
    assert asyncio.run(asyncio.wait_for(loop.run(), LIMIT_S)) == "completed"
    assert diary.entries == list(enumerate(["generate", *step] * STEPS + saved))
    assert loop.handover.state is State.GENERATE


class Batches(Diary):
    """Its rollouts are batches, divided as another run divided them."""

    async def run(self, step: int, steps: int) -> AsyncIterator[Rollout]:
        columns = {"position": torch.arange(3), "minibatch": torch.tensor([2, 0, 1])}
        batch = scored([1.0, 0.0, 0.0], [0, 0, 0]).with_columns(per_sample=columns)
        metrics = {"time/rollout_s": 0.0, "rollout/response_tokens": 6.0}
        yield Rollout(step=step + 1, version=step, groups=(), metrics=metrics, batch=batch)

    async def update(self, shares: Any, *, version: int, **more: Any) -> UpdateResult:
        self.minibatches = [share.per_sample["minibatch"].tolist() for share in shares]
        return await super().update(shares, version=version, **more)


def test_the_batch_of_a_producer_is_divided_into_the_minibatches_of_the_run(prepared: Prepared) -> None:
    producer: Any = Batches()
    run = prepared.resolved.run.but(minibatches=2)
    parts = dict.fromkeys(("producer", "trainer", "engines", "stop"), producer)
    loop = Loop(
        prepared=replace(prepared, resolved=replace(prepared.resolved, run=run), last_step=1),
        state=RunState(step=0, version=0, producer={}, model={}),
        trackers=Trackers({}, SilentDisplay()),
        **parts,
    )
    asyncio.run(asyncio.wait_for(loop.run(), LIMIT_S))
    assert producer.minibatches == [[0, 0, 1]]


def test_each_state_leads_to_the_next_ones_alone() -> None:
    nobody: Any = None
    handover = Handover(nobody, nobody, shares=True, sleep="all")
    around = [
        State.PUBLISH,
        State.SLEEP,
        State.RESUME,
        State.GENERATE,
        State.DRAIN,
        State.RELEASE,
        State.WAKE,
    ]
    for state in [*around, State.TRAIN]:
        handover.enter(state)
    with pytest.raises(AssertionError, match="train leads to generate"):
        handover.enter(State.GENERATE)


@pytest.mark.parametrize(
    ("flags", "shares"),
    [
        ({}, True),
        ({"placement": "split"}, False),
        ({"max_staleness": "1"}, False),
        ({"max_staleness": "1", "partial_rollouts": True}, True),
    ],
    ids=str,
)
def test_which_engines_can_rest(prepared: Prepared, flags: dict[str, Any], shares: bool) -> None:
    assert replace(prepared, resolved=run_of("grpo", flags)).shares_memory is shares
