"""What every generator must fulfill, as a suite to subclass.

    class TestMyGenerator(GeneratorConformance):
        def generator(self) -> Generator:
            return MyGenerator(MyConfig())

        def answer(self, prompt: str, seed: int) -> str:
            return "what the policy says"

The engine answers token by token from `answer`, and remembers each token with what stood before it.
Everything between it and the generator is core's own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self
from unittest import SkipTest

from rlcore.api.errors import ConfigError
from rlcore.api.generation import ClosableGenerator, Generator, GroupGenerator
from rlcore.api.types import GenerationStatus, Prompt, Sample, Sampling
from rlcore.rollout.context import EngineContext
from rlcore.rollout.generators import build_generator, check_samples
from rlcore_testing.conformance import Conformance, Subject, same
from rlcore_testing.samples import sample_of
from rlcore_testing.token_engine import CountingReward, TokenEngine
from rlcore_toolkit import ContinuingContext, RequestGate

FINISHED = {GenerationStatus.COMPLETED, GenerationStatus.TRUNCATED}
COUNT = 3
INTERRUPTIONS = 40
ROOM = 2500
"""Tokens, each a byte, that hold descriptions of tools and several turns."""


class GeneratorConformance(Conformance):
    """Subclass it as `Test…` and give `generator` or `part`."""

    samples_anew: ClassVar[bool] = True
    """Whether the tokens that are trained on come from the engine."""

    writes_prompts: ClassVar[bool] = False
    """Whether it renders the prompt anew, with tools for example."""

    max_tokens: ClassVar[int] = 400
    """The tokens that a response may have."""

    @classmethod
    def of(cls, subject: Subject) -> type[Self]:
        """It answers the first prompt. It may write prompts; whether it samples, a first answer shows.

        Raises `ConfigError` if it can answer no prompt of the suite.
        """
        known = {"asked": subject.prompts[0]} if subject.prompts else {}
        made = cls.with_values(part=subject.part, writes_prompts=True, max_tokens=ROOM, **known)
        suite, engine = made(), made()._engine()
        samples = [sample for trajectory in suite._run(engine) for sample in trajectory]
        if not subject.prompts and all(sample.status is GenerationStatus.FAILED for sample in samples):
            raise ConfigError(
                f"generator {suite.part.name!r} cannot answer the suite's prompt ({samples[0].failure}); "
                "give one that it can, by --data FILE or --task NAME."
            )
        return made.with_values(samples_anew=engine.requests > 0)

    def generator(self) -> Generator:
        """A new instance."""
        return build_generator(self.part)

    def answer(self, prompt: str, seed: int) -> str:
        """What the policy says after `prompt` (text, special tokens included), without the end token."""
        return f"answer {seed % 7}"

    asked: ClassVar[Prompt] = Prompt(prompt_id="p", text="question")

    def prompt(self) -> Prompt:
        """What is asked."""
        return self.asked

    # --- the properties --------------------------------------------------------------------------------

    def test_every_response_token_has_its_mask_and_log_prob(self) -> None:
        for sample in self._finished(self._engine()):
            tokens = len(sample.response_ids)
            marked, weighed = len(sample.loss_mask), len(sample.log_probs)
            assert tokens == marked == weighed, f"{tokens} tokens, {marked} in the mask, {weighed} log-probs"
            assert {*sample.loss_mask} <= {0, 1}, "a mask has 0 and 1 alone"
            assert 1 in sample.loss_mask, "there is nothing to train on"
            for live, log_prob in zip(sample.loss_mask, sample.log_probs, strict=True):
                assert math.isfinite(log_prob), f"a log-prob is {log_prob}"
                assert live or log_prob == 0, "a token that nobody sampled has the log-prob 0.0"

    def test_trained_tokens_are_those_that_the_engine_sampled(self) -> None:
        """Each after exactly the tokens that stand before it: nothing is decoded and tokenised again."""
        engine = self._engine()
        self._check_drawn(engine, self._finished(engine))

    def test_spans_cover_the_response(self) -> None:
        for sample in self._finished(self._engine()):
            tokens, covered = len(sample.response_ids), len(sample.token_versions)
            assert covered == tokens, f"{tokens} tokens, and the spans cover {covered}"

    def test_each_token_carries_the_version_that_sampled_it(self) -> None:
        """Staleness: each token carries the version of the weights that sampled it."""
        engine = self._engine(versions_per_token=1)
        samples = self._finished(engine)
        self._check_drawn(engine, samples)
        assert not self.samples_anew or any(len(sample.versions) > 1 for sample in samples)

    def test_a_sample_keeps_its_ids(self) -> None:
        asked = self._pending(self._engine())
        for pending, trajectory in zip(asked, self._run(self._engine()), strict=True):
            for sample in trajectory:
                for name in ("prompt", "group_id", "index", "rollout_id", "attempt"):
                    assert getattr(sample, name) == getattr(pending, name), name
                # A split trajectory has prompts of its own.
                if len(trajectory) == 1 and not self.writes_prompts:
                    assert sample.prompt_ids == pending.prompt_ids, "prompt_ids"
                assert sample.status is not GenerationStatus.PENDING, "its status is still PENDING"

    def test_equal_seeds_give_equal_samples(self) -> None:
        """The same seeds give the same samples, whether they are made at once or one after another."""
        first = self._run(self._engine())
        same(self._run(self._engine()), first, "again, the samples")
        same(self._run(self._engine(), one_by_one=True), first, "one after another, the samples")

    def test_a_policy_that_never_stops_is_truncated(self) -> None:
        for trajectory in self._run(self._engine(endless=True)):
            for sample in trajectory:
                tokens = len(sample.response_ids)
                assert tokens <= self.max_tokens, f"{tokens} tokens, the limit is {self.max_tokens}"
            is_cut = trajectory[-1].status is not GenerationStatus.COMPLETED
            assert is_cut or not self.samples_anew, "a limit cut it, and its status is COMPLETED"

    def test_an_answer_that_was_aborted_is_not_finished(self) -> None:
        if not self.samples_anew:
            raise SkipTest("it samples nothing")
        for trajectory in self._run(self._engine(aborting=True)):
            statuses = [sample.status.name for sample in trajectory]
            assert "ABORTED" in statuses, f"the run interrupted each answer, and the status is {statuses[-1]}"

    def test_interruptions_leave_no_trace(self) -> None:
        """Partial rollouts: requests are ended and go on with other weights; the tokens are the same."""
        expected, engine = self._run(self._engine()), self._engine()
        samples = asyncio.run(self._interrupted(engine))
        tokens, wanted = (
            [_tokens(trajectory) for trajectory in samples],
            [_tokens(trajectory) for trajectory in expected],
        )
        same(tokens, wanted, "interrupted, the samples")
        self._check_drawn(engine, [sample for trajectory in samples for sample in trajectory])

    def test_a_resumed_run_samples_nothing_again(self) -> None:
        """Run again from its start, it asks the same: a resumed run answers from its notes."""
        engine = self._engine()
        first, requests, again = asyncio.run(self._twice(engine))
        same(again, first, "run again, the samples")
        asked = engine.requests - requests
        assert not asked, f"run again, it asked {asked} times for what was noted"

    def test_a_group_made_at_once_answers_each_request(self) -> None:
        engine = self._engine()
        generator = self.generator()
        if not isinstance(generator, GroupGenerator):
            raise SkipTest("it makes each sample by itself")
        pending = self._pending(engine)
        samples = asyncio.run(generator.generate_group(self._context(engine), pending))
        asked, made = ([sample.rollout_id for sample in some] for some in (pending, samples))
        assert made == asked, f"asked for the rollouts {asked}, it made {made}"
        self._check_drawn(engine, samples)

    # --- how they are checked --------------------------------------------------------------------------

    def _engine(
        self, *, aborting: bool = False, endless: bool = False, versions_per_token: int = 0
    ) -> TokenEngine:
        return TokenEngine(
            self.answer, aborting=aborting, endless=endless, versions_per_token=versions_per_token
        )

    def _context(self, engine: TokenEngine) -> EngineContext:
        return EngineContext(engine, engine.tokenizer, self._sampling, CountingReward())

    @property
    def _sampling(self) -> Sampling:
        return Sampling(max_tokens=self.max_tokens)

    def _pending(self, engine: TokenEngine) -> list[Sample]:
        prompt = self.prompt()
        if isinstance(prompt.text, str):
            ids = engine.tokenizer.encode(prompt.text, add_special_tokens=False)
        else:
            ids = engine.tokenizer.apply_chat_template(
                list(prompt.text), add_generation_prompt=True, tokenize=True
            )
        return [
            sample_of(prompt=prompt, prompt_ids=tuple(ids), index=index, seed=1000 * index)
            for index in range(COUNT)
        ]

    def _run(self, engine: TokenEngine, *, one_by_one: bool = False) -> list[list[Sample]]:
        async def run() -> list[list[Sample]]:
            generator, ctx = self.generator(), self._context(engine)
            if not one_by_one:
                return await self._all(generator, ctx, engine)
            try:
                return [_listed(await generator.generate(ctx, sample)) for sample in self._pending(engine)]
            finally:
                await _close(generator)

        return asyncio.run(run())

    async def _all(self, generator: Generator, ctx: EngineContext, engine: TokenEngine) -> list[list[Sample]]:
        try:
            samples = await asyncio.gather(
                *(generator.generate(ctx, sample) for sample in self._pending(engine))
            )
        finally:
            await _close(generator)
        return [_listed(made) for made in samples]

    def _finished(self, engine: TokenEngine) -> list[Sample]:
        samples = [sample for trajectory in self._run(engine) for sample in trajectory]
        assert {sample.status for sample in samples} <= FINISHED, [sample.failure for sample in samples]
        return samples

    def _check_drawn(self, engine: TokenEngine, samples: Sequence[Sample]) -> None:
        for sample in samples if self.samples_anew else ():
            tokens = sample.prompt_ids + sample.response_ids
            versions = sample.token_versions
            for place, token in enumerate(sample.response_ids):
                if sample.loss_mask[place]:
                    before = tokens[: len(sample.prompt_ids) + place]
                    drawn = {
                        (draw.token, draw.log_prob, draw.version) for draw in engine.drawn.get(before, ())
                    }
                    recorded = (token, sample.log_probs[place], versions[place])
                    assert recorded in drawn, f"response token {place}: {recorded}, the engine drew {drawn}"

    async def _interrupted(self, engine: TokenEngine) -> list[list[Sample]]:
        gate, ctx = self._continuing(engine)
        made = asyncio.ensure_future(self._all(self.generator(), ctx, engine))
        for _ in range(INTERRUPTIONS):
            await asyncio.sleep(0)
            if made.done():
                break
            await gate.close(interrupt=True)
            engine.version += 1
            gate.open()
        return await made

    async def _twice(self, engine: TokenEngine) -> tuple[list[list[Sample]], int, list[list[Sample]]]:
        _, ctx = self._continuing(engine)
        first = await self._all(self.generator(), ctx, engine)
        requests = engine.requests
        return first, requests, await self._all(self.generator(), ctx, engine)

    def _continuing(self, engine: TokenEngine) -> tuple[RequestGate, ContinuingContext]:
        gate = RequestGate([engine])
        sampling, reward = self._sampling, CountingReward()
        return gate, ContinuingContext(engine, engine.tokenizer, sampling, reward, requests=gate, notes={})


async def _close(generator: Generator) -> None:
    if isinstance(generator, ClosableGenerator):
        await generator.close()


def _listed(made: Sample | list[Sample]) -> list[Sample]:
    samples = made if isinstance(made, list) else [made]
    check_samples("generate()", samples)
    return samples


def _tokens(trajectory: Sequence[Sample]) -> list[Sample]:
    """All but the versions."""
    return [replace(sample, spans=()) for sample in trajectory]
