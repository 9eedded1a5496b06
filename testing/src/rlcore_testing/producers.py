"""What every producer must fulfill, as a suite to subclass.

    class TestMyProducer(ProducerConformance):
        part = Part(name="half", factory="acme.half:Half", config=HalfConfig())

It makes the rollouts of one epoch, in this process: a scripted engine, one turn a sample, a reward that
counts tokens. Everything beside the producer is core's own. One that makes batches (`makes_batches`) gets no
engine and no vocabulary, and what groups must fulfill is not asked.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar, TypeVar
from unittest import SkipTest

import torch

from rlcore.api.columns import TrainsOn
from rlcore.api.generation import GenerationContext
from rlcore.api.part_config import ProducerConfig
from rlcore.api.producer import Producer, ProducerContext, Rollout
from rlcore.api.run_config import RunConfig
from rlcore.api.types import Json, Prompt, Sample
from rlcore.data.cursors import PromptCursor
from rlcore.data.prompt_tokenizer import PromptTokenizer
from rlcore.learning.batch_file import named_tensors
from rlcore_testing.conformance import Conformance, same
from rlcore_testing.token_engine import CountingReward, TokenEngine
from rlcore_toolkit import answered

STEPS = 3
PER_STEP = 4
PROMPTS = STEPS * PER_STEP
"""The prompts of an epoch."""
LIMIT_S = 60.0
METRICS = ("time/rollout_s", "rollout/response_tokens")
TIMED = ("time/", "rollout/tokens_per_s")

T = TypeVar("T")


class ProducerConformance(Conformance):
    """Subclass it as `Test…` and give `part`."""

    settings: ClassVar[Mapping[str, Json]] = {}
    """Settings of the run, beside the usual ones."""

    @property
    def config(self) -> ProducerConfig:
        """The config of the part."""
        config: ProducerConfig = self.part.config
        return config

    # --- the properties --------------------------------------------------------------------------------

    def test_each_step_has_a_rollout(self) -> None:
        """In order, with the metrics that a run reads, and a batch where it makes them."""
        assert self._steps >= 1, f"its last step is {self._steps}"
        rollouts = self._rollouts()
        assert [rollout.step for rollout in rollouts] == [*range(1, self._steps + 1)], (
            f"steps {[rollout.step for rollout in rollouts]} of 1 to {self._steps}"
        )
        for rollout in rollouts:
            batch = rollout.batch
            assert (batch is not None) == self.config.makes_batches, f"step {rollout.step}: batch {batch}"
            assert batch is None or "rollout" in batch.per_sample, (
                f"step {rollout.step}: its batch lacks per_sample['rollout']"
            )
            missing = [name for name in METRICS if name not in rollout.metrics]
            assert not missing, f"step {rollout.step}: the metric {missing[0]} is missing"
            bad = [name for name, value in rollout.metrics.items() if not math.isfinite(value)]
            assert not bad, f"step {rollout.step}: {bad[0]} is {rollout.metrics[bad[0]]}"

    def test_groups_are_whole(self) -> None:
        """Each with all its siblings, in order, with something to train on; scored where engines sampled."""
        samples = self._world().producer.samples
        for rollout in self._with_groups():
            for group in rollout.groups:
                where = f"step {rollout.step}, group {group.group_id}"
                places = [sample.index for sample in group.samples]
                assert places == list(range(self._group_size)), f"{where}: samples {places}"
                for sample in group.samples:
                    assert sample.prompt == group.prompt, f"{where}: a sample of another prompt"
                    assert sample.response_ids, f"{where}: a sample without a response"
                    assert not samples or sample.score is not None, f"{where}: a sample without a score"

    def test_groups_come_by_their_ids(self) -> None:
        """So a batch does not depend on what was ready first; no id twice in a run."""
        ids = [[group.group_id for group in rollout.groups] for rollout in self._with_groups()]
        for of_step in ids:
            assert of_step == sorted(of_step), f"groups in the order {of_step}"
        every = [group for of_step in ids for group in of_step]
        assert len(set(every)) == len(every), f"a group is handed out twice: {every}"

    def test_no_prompt_comes_twice_in_an_epoch(self) -> None:
        _prompts(self._with_groups())

    def test_weights_are_at_most_as_old_as_the_run_allows(self) -> None:
        """Each token says which weights sampled it; a rollout, with which it is trained."""
        allowed = self._run_config().asynchrony.max_staleness
        for rollout in self._with_groups():
            for sample in (sample for group in rollout.groups for sample in group.samples):
                ages = [rollout.version - version for version in sample.versions]
                assert all(age <= allowed for age in ages), (
                    f"step {rollout.step}: a token is {max(ages)} versions old, --max-staleness is {allowed}"
                )

    def test_it_says_the_same_again(self) -> None:
        """A synchronous run of one seed is the same run, timings aside."""
        first, again = self._rollouts(), self._rollouts()
        if self.config.asynchronous:
            prompts, expected = _prompts(again), _prompts(first)
            assert prompts == expected, f"other prompts: {prompts}, were {expected}"
            return
        for rollout, other in zip(again, first, strict=True):
            same(rollout.groups, other.groups, f"again, step {rollout.step}: the groups")
            _same_batch(rollout, other, "again")
            assert _timeless(rollout) == _timeless(other), f"again, step {rollout.step}: other metrics"

    def test_a_resumed_run_loses_no_prompt(self) -> None:
        """Closed after any step, its state is JSON; another process makes what this one would have made."""
        expected = self._rollouts()
        for last in range(self._steps):
            first, state = asyncio.run(_limited(partial(self._until, last)))
            rest = asyncio.run(_limited(partial(self._from, last, state)))
            self._same([*first, *rest], expected, f"resumed after step {last}")

    def test_a_checkpoint_on_the_way_changes_nothing(self) -> None:
        """`suspended` between two rollouts; afterwards it goes on."""
        expected = self._rollouts()
        found = asyncio.run(_limited(lambda: self._all(self._world(), checkpoints=True)))
        self._same(found, expected, "with checkpoints")

    # --- how they are checked --------------------------------------------------------------------------

    @property
    def _group_size(self) -> int:
        return self._trains_on.per_prompt or 3

    @property
    def _trains_on(self) -> TrainsOn:
        rollouts = TrainsOn.ROLLOUTS
        return rollouts if rollouts in self.config.trains_on else sorted(self.config.trains_on)[0]

    @property
    def _steps(self) -> int:
        last = self.config.last_step()
        return STEPS if last is None else min(STEPS, last)

    def _run_config(self) -> RunConfig:
        usual = {"prompts_per_step": PER_STEP, "group_size": self._group_size, "max_prompt_tokens": 32}
        stale = {"max_staleness": 1} if self.config.asynchronous else {}
        return RunConfig.of(**{**usual, **stale, **self.settings})

    def _world(self) -> _World:
        return _World(self.part, self._run_config(), self._trains_on)

    def _rollouts(self) -> list[Rollout]:
        return asyncio.run(_limited(lambda: self._all(self._world())))

    def _with_groups(self) -> list[Rollout]:
        if self.config.makes_batches:
            raise SkipTest("it makes batches, not groups")
        return self._rollouts()

    def _same(self, found: Sequence[Rollout], expected: Sequence[Rollout], when: str) -> None:
        """The same prompts, and of a synchronous run the same batches."""
        prompts, known = _prompts(found), _prompts(expected)
        assert prompts == known, f"{when}, the prompts {prompts}, were {known}"
        if not self.config.asynchronous:
            for rollout, other in zip(found, expected, strict=True):
                _same_batch(rollout, other, when)

    async def _all(self, world: _World, done: int = 0, checkpoints: bool = False) -> list[Rollout]:
        """Those of the steps from `done` + 1 on, each trained on at once."""
        rollouts = []
        async with aclosing(world.producer.run(done, self._steps)) as made:
            async for rollout in made:
                rollouts.append(rollout)
                if checkpoints:
                    async with world.producer.suspended():
                        json.dumps(world.producer.state())
                await world.publish(rollout.step)
        return rollouts

    async def _until(self, last: int) -> tuple[list[Rollout], Json]:
        """Those until step `last`, and the state as it is saved then."""
        world, rollouts = self._world(), list[Rollout]()
        async with aclosing(world.producer.run(0, self._steps)) as made:
            while len(rollouts) < last:
                rollouts.append(await anext(made))
                await world.publish(len(rollouts))
        try:
            return rollouts, json.loads(json.dumps(world.producer.state()))
        except (TypeError, ValueError) as error:
            raise AssertionError(f"its state is no JSON: {error}") from error

    async def _from(self, last: int, state: Json) -> list[Rollout]:
        """The rest, of another producer that loads the state."""
        world = _World(self.part, self._run_config(), self._trains_on, version=last)
        world.producer.load(state)
        return await self._all(world, done=last)


class _World:
    """A producer with a run around it."""

    def __init__(self, part: Any, run: RunConfig, trains_on: TrainsOn, version: int = 0) -> None:
        self._engine = TokenEngine(lambda prompt, seed: f"{prompt}{'ab' * (seed % 5)}")
        self._engine.version = version
        engines = trains_on is TrainsOn.ROLLOUTS and not part.config.makes_batches
        context = ProducerContext(
            run=run,
            cursor=PromptCursor([_prompt(number, trains_on) for number in range(PROMPTS)], run.seed),
            encoder=PromptTokenizer(self._engine.tokenizer, run.sampling.max_prompt_tokens),
            clients=[self._engine] if engines else [],
            generator=_OneTurn(),
            rewards=CountingReward(),
            filters=[],
            version=version,
            baseline=False,
            # Batches may be of any model: a producer may read files.
            vocabulary=None if part.config.makes_batches else len(self._engine.tokenizer),
        )
        self.producer: Producer = part.build(context=context)

    async def publish(self, version: int) -> None:
        """What the trainer does after a step."""
        async with self.producer.publication(version):
            self._engine.version = version


class _OneTurn:
    """Prompt in, one response out."""

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        rid = f"{sample.rollout_id}-{sample.attempt}"
        [done] = await ctx.complete(sample.prompt_ids, seed=sample.seed, rid=rid)
        return answered(sample, done)


def _prompt(number: int, trains_on: TrainsOn) -> Prompt:
    given = tuple(f"answer {number}{'!' * marks}" for marks in range(trains_on.per_prompt))
    return Prompt(prompt_id=f"p{number}", text=f"{number:02d}", label=f"{number}", responses=given)


def _prompts(rollouts: Sequence[Rollout]) -> list[str]:
    """The ids of all prompts, sorted. Fails where one comes twice."""
    ids = sorted(group.prompt.prompt_id for rollout in rollouts for group in rollout.groups)
    twice = sorted({name for name in ids if ids.count(name) > 1})
    assert not twice, f"the prompt {twice[0]!r} comes twice"
    return ids


def _same_batch(found: Rollout, expected: Rollout, when: str) -> None:
    """Fails at the first tensor that differs."""
    tensors, known = ({} if of.batch is None else named_tensors(of.batch) for of in (found, expected))
    where = f"{when}, step {expected.step}"
    assert tensors.keys() == known.keys(), f"{where}: the batch has {sorted(tensors)}, had {sorted(known)}"
    for name, tensor in tensors.items():
        assert torch.equal(tensor, known[name]), f"{where}: the batch has other {name}"


def _timeless(rollout: Rollout) -> dict[str, float]:
    return {name: value for name, value in rollout.metrics.items() if not name.startswith(TIMED)}


async def _limited(make: Callable[[], Awaitable[T]]) -> T:
    try:
        async with asyncio.timeout(LIMIT_S):
            return await make()
    except TimeoutError:
        raise AssertionError(f"nothing came for {LIMIT_S:g} s") from None
