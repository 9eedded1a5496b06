"""Generators in processes of their own: the same samples, errors and ends as in the driver."""

import asyncio
import logging
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from rlcore.api.config import Config
from rlcore.api.errors import ConfigError, DataError, EngineError, PluginError, RlcoreError, WorkerError
from rlcore.api.generation import Completion, GenerationContext, Generator, Request
from rlcore.api.part import Part
from rlcore.api.producer import ProducerContext
from rlcore.api.run_config import RunConfig
from rlcore.api.types import GenerationStatus, Prompt, RewardStatus, Sample, Sampling, Score, Span
from rlcore.data.cursors import cursor_of
from rlcore.data.prompt_tokenizer import PromptTokenizer
from rlcore.engines.client_http import RefusedError
from rlcore.rollout.context import EngineContext
from rlcore.rollout.generators import Generators
from rlcore.rollout.pipeline import GroupPipeline
from rlcore.workers.rollout_workers import RolloutWorkers
from rlcore.workers.trainer_group import BundleSlot
from rlcore_processes.cluster import ProcessActor, ProcessCluster
from rlcore_processes.config import ProcessesConfig
from rlcore_qwen.tiny import tiny
from rlcore_sampling.synchronous import SynchronousRollouts
from rlcore_toolkit import Trajectory, answered

LIMIT_S = 30.0
PROMPTS = [Prompt(prompt_id=f"p{number}", text=f"{number:02d}=", label=str(number)) for number in range(12)]
_log = logging.getLogger(__name__)


# --- generators, which run in the workers -------------------------------------------------------------------


class Turns:
    """Three answers; after each, somebody else writes a digit. Who comes first differs from run to run."""

    name = "turns"

    def __init__(self, config: Config) -> None:
        self._calls = 0

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample | list[Sample]:
        """Every third sample is split in two, and keeps what it has been called as."""
        trajectory, text = Trajectory(ctx, sample), ctx.decode(sample.prompt_ids)
        for turn in range(3):
            text += (await trajectory.answer(4)).text
            await asyncio.sleep(0.001 * (sample.seed % 3))
            if not trajectory.observe(ctx.encode(str(turn))):
                break
        made = trajectory.end(GenerationStatus.COMPLETED, text, metrics={"turns": trajectory.turns})
        return [made, replace(made, text="again")] if sample.index == 2 else made


class Best:
    """The better of two answers, by the run's reward; all samples of a group in one call."""

    def __init__(self, config: Config) -> None:
        pass

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        """One sample."""
        return (await self.generate_group(ctx, [sample]))[0]

    async def generate_group(self, ctx: GenerationContext, samples: Sequence[Sample]) -> list[Sample]:
        """Metadata is changed in place, as nobody should."""
        made = []
        for sample in samples:
            answers = await ctx.complete(sample.prompt_ids, n=2, seed=sample.seed, rid=sample.rollout_id)
            scored = await ctx.score([answered(sample, answer) for answer in answers])
            best = max(scored, key=lambda one: one.score.value if one.score else 0.0)
            cast("dict[str, Any]", best.metadata)["room"] = ctx.context_length - len(best.response_ids)
            made.append(replace(best, extras={"ids": list(best.response_ids)}))
        return made


class OddError(RlcoreError):
    """One that cannot travel."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


async def failing(ctx: GenerationContext, sample: Sample) -> Sample:
    """Each prompt fails in another way."""
    match sample.prompt.prompt_id:
        case "p0":
            raise ValueError("too odd")
        case "p1":
            raise DataError("The prompt is no chat.")
        case "p2":
            raise OddError("too", "odd")
        case "p3":
            raise asyncio.CancelledError
        case "p4":
            return replace(sample, extras={"a": lambda: None})
        case "p8":
            return cast("Sample", None)
        case _:
            (done,) = await ctx.complete(sample.prompt_ids, seed=sample.seed, rid=sample.prompt.prompt_id)
            return answered(sample, done)


PORTS = 0
"""In the driver there is one."""


class OnlyHere(Turns):
    """Cannot be built in a worker."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not PORTS:
            raise ConfigError("The port is taken.")


class Waiting:
    """Waits for an answer, or for ever, and writes down how it ends into the folder that the label names."""

    def __init__(self, config: Config) -> None:
        self._folders: set[Path] = set()

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        """The prompt says what it does."""
        folder = Path(sample.prompt.label)
        self._folders.add(folder)
        (folder / "pid").write_text(str(os.getpid()))
        try:
            if sample.prompt.text == "block":
                (folder / "began").touch()
                time.sleep(2 * LIMIT_S)
            _log.warning("%s waits", sample.rollout_id)
            await ctx.complete((1,), seed=0, rid=sample.rollout_id)
        finally:
            (folder / "ended").touch()
        return sample

    async def close(self) -> None:
        """The run is over."""
        for folder in self._folders:
            (folder / "closed").touch()


class Leaving:
    """Leaves a task behind, which asks when a second call says so; that call tells what became of it."""

    def __init__(self, config: Config) -> None:
        self._asks = asyncio.Event()
        self._left: asyncio.Task[None] | None = None

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        if self._left is None:
            self._left = asyncio.create_task(self._ask(ctx, sample))
            return sample
        self._asks.set()
        [error] = await asyncio.gather(self._left, return_exceptions=True)
        return replace(sample, text=f"{type(error).__name__}: {error}")

    async def _ask(self, ctx: GenerationContext, sample: Sample) -> None:
        await self._asks.wait()
        await ctx.complete(sample.prompt_ids, seed=0, rid="late")


class Tidy:
    """Asks once more when its call is ended from outside."""

    def __init__(self, config: Config) -> None:
        pass

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        try:
            await ctx.complete(sample.prompt_ids, seed=0, rid="first")
        finally:
            await ctx.complete(sample.prompt_ids, seed=0, rid="last")
            Path(sample.prompt.label, "tidied").touch()
        return sample


# --- the driver ---------------------------------------------------------------------------------------------


class Engine:
    """Answers with digits drawn from the seed, later or earlier; or never, or with an error, by the `rid`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.asked: list[tuple[str, str | None]] = []
        self.errors: dict[str, Exception] = {}
        self.waiting = False
        self.cancelled = 0

    async def generate(self, request: Request) -> list[Completion]:
        self.asked.append((request.rid, request.session))
        try:
            await asyncio.sleep(3600 if self.waiting else 0.001 * (request.seed % 3))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if request.rid in self.errors:
            raise self.errors[request.rid]
        return [self._answer(request.input_ids, request.sampling, request.seed + i) for i in range(request.n)]

    async def abort(self) -> None:
        """Nobody asks for it."""

    def _answer(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> Completion:
        draw = random.Random(f"{seed} {list(prompt)}")
        ids = [draw.randrange(len(self._tokenizer)) for _ in range(min(6, sampling.max_tokens))]
        return Completion(
            token_ids=tuple(ids),
            log_probs=tuple(-draw.random() for _ in ids),
            text=self._tokenizer.decode(ids, skip_special_tokens=True),
            finish_reason="stop",
            spans=(Span(start=0, version=0),),
            prompt_tokens=len(prompt),
        )


class Rewards:
    """The mean of the tokens."""

    async def score(self, samples: Sequence[Sample]) -> list[Sample]:
        return [
            replace(
                sample,
                reward_status=RewardStatus.SCORED,
                score=Score(value=sum(sample.response_ids) / len(sample.response_ids)),
            )
            for sample in samples
        ]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with pytest.MonkeyPatch.context() as patch, closing(ProcessCluster(ProcessesConfig())) as made:
        patch.syspath_prepend(Path(__file__).parents[3])  # where the generators are imported from
        made.prepare(["rlcore_processes.actor_process", "transformers", __name__])
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("model"), seed=0)


@pytest.fixture(scope="module")
def encoder(model: Path) -> PromptTokenizer:
    return PromptTokenizer.load(model, max_prompt_tokens=16)


Place = Callable[..., Any]


@pytest.fixture
def placed(cluster: ProcessCluster, model: Path) -> Place:
    """`async with placed("NAME", WORKERS) as (generator, workers)`."""

    @asynccontextmanager
    async def place(name: str, count: int, **limits: Any) -> AsyncIterator[tuple[Generator, RolloutWorkers]]:
        part = Part(name=name, factory=f"{__name__}:{name}")
        group = cluster.place([{"CPU": 1}] * count, "They")
        slots = [
            BundleSlot(bundle=(group, index), gpus=0, host=cluster.here, is_here=True)
            for index in range(count)
        ]
        workers = RolloutWorkers(
            cluster,
            slots,
            Generators([part]),
            files=(),
            tokenizer=str(model),
            limits=RunConfig.of(**limits).limits,
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                await workers.start()
                yield workers.of(part), workers
        finally:
            await workers.stop()

    return place


def context(encoder: PromptTokenizer, engine: Engine) -> EngineContext:
    return EngineContext(engine, encoder.tokenizer, Sampling(max_tokens=20), Rewards())


def pending(text: str, folder: Path, group_id: int = 0) -> Sample:
    prompt = Prompt(prompt_id="p", text=text, label=str(folder))
    return Sample(prompt=prompt, prompt_ids=(1,), group_id=group_id, index=0, rollout_id=f"{group_id}.0")


async def until(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.01)


def producer(
    encoder: PromptTokenizer, engine: Engine, generator: Generator, **settings: Any
) -> SynchronousRollouts:
    run = RunConfig.of(
        **{
            "prompts_per_step": 4,
            "group_size": 3,
            "max_prompt_tokens": 16,
            "max_response_tokens": 20,
            **settings,
        }
    )
    return SynchronousRollouts(
        ProducerContext(
            run=run,
            cursor=cursor_of(PROMPTS, run),
            encoder=encoder,
            clients=[engine],
            generator=generator,
            rewards=Rewards(),
            version=0,
        )
    )


def pipeline_of(encoder: PromptTokenizer, generator: Generator, **settings: Any) -> GroupPipeline:
    run = RunConfig.of(max_prompt_tokens=16, max_response_tokens=20, **settings)
    return GroupPipeline(run=run, encoder=encoder, generator=generator, rewards=Rewards())


@pytest.mark.parametrize("name", ["Turns", "Best"])
async def test_the_samples_are_those_of_the_driver(
    placed: Place, encoder: PromptTokenizer, name: str
) -> None:
    """Whatever finishes first: groups, metrics, requests, and the first ones of a round in one session."""
    found = []
    for count in (0, 1, 2):
        engine = Engine(encoder.tokenizer)
        async with placed(name, count) as (generator, _):
            made = producer(encoder, engine, generator)
            rollouts = [await made.rollout(step) for step in (1, 2)]
        metrics = [
            {key: value for key, value in one.metrics.items() if not key.startswith("time/")}
            for one in rollouts
        ]
        found.append(([one.groups for one in rollouts], metrics, sorted(engine.asked, key=str)))
    groups, metrics, asked = found[0]
    assert found[1] == found[0]
    assert found[2] == found[0]
    assert len(groups[0]) == 4
    assert metrics[0]["rollout/failed"] == 0
    assert {session for _, session in asked if session} == ({"1/4", "2/4"} if name == "Best" else set())


async def test_what_need_not_travel_is_the_driver_s_own(placed: Place, encoder: PromptTokenizer) -> None:
    async with placed("Turns", 1) as (generator, _):
        asked = replace(pending("0", Path()), prompt_ids=(3, 4))
        made = await generator.generate(context(encoder, Engine(encoder.tokenizer)), asked)
    assert isinstance(made, Sample)
    assert made.prompt is asked.prompt
    assert made.prompt_ids is asked.prompt_ids


async def test_errors_are_told_as_by_the_driver(placed: Place, encoder: PromptTokenizer) -> None:
    said: list[list[tuple[type, str]]] = []
    errors = {
        "p5": RefusedError("The engine refused it.", 400),
        "p6": EngineError("The engine died."),
        "p7": OddError("lost", "it"),
    }
    for count in (0, 1):
        engine, found = Engine(encoder.tokenizer), list[tuple[type, str]]()
        engine.errors = {**errors}
        async with placed("failing", count) as (generator, _):
            pipeline = pipeline_of(encoder, generator)
            for prompt in PROMPTS[:9]:
                if prompt.prompt_id == "p4" and not count:
                    continue  # it need not travel
                asked = replace(pending("0", Path()), prompt=prompt)
                try:
                    [made], refused = await pipeline._generate(context(encoder, engine), [asked])
                    found.append((type(refused), str(refused) + str(made[0].failure)))
                except RlcoreError as error:
                    found.append((type(error), str(error)))
        said.append(found)
    here, away = said
    line = failing.__code__.co_firstlineno + 4
    place = f"({__file__}, line {line})"
    assert here[0] == (PluginError, f"The generator 'failing' failed: ValueError: too odd {place}.")
    kept = away.pop(4)
    assert kept[0] is PluginError
    assert kept[1].startswith("The generator 'failing' failed: ")
    assert "pickle" in kept[1]
    # Of a class that cannot travel the sentence is left.
    odd = [(PluginError, f"The generator 'failing' failed: OddError: {text} odd.") for text in ("too",)]
    odd += [(PluginError, "The generator 'failing' failed: OddError: lost it.")]
    assert away == [*here[:2], odd[0], *here[3:6], odd[1], here[7]]
    assert here[7][1] == "The generator 'failing' returned None; expected a Sample or a list of them."


async def test_a_cancelled_call_ends_in_the_worker_and_its_request_in_the_engine(
    placed: Place, encoder: PromptTokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(encoder.tokenizer)
    engine.waiting = True
    async with placed("Waiting", 2) as (generator, _):
        call = asyncio.ensure_future(generator.generate(context(encoder, engine), pending("0", tmp_path)))
        await until(lambda: bool(engine.asked))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (tmp_path / "ended").exists(), "before the driver goes on"
        await until(lambda: engine.cancelled == 1)
        assert not (tmp_path / "closed").exists()
    assert (tmp_path / "closed").exists()
    assert "0.0 waits" in caplog.text


async def test_a_call_that_is_cancelled_before_it_began_ends(
    placed: Place, encoder: PromptTokenizer, tmp_path: Path
) -> None:
    """The worker reads of the call and of its end in one message."""
    async with placed("Waiting", 1) as (generator, workers):
        ctx = context(encoder, Engine(encoder.tokenizer))
        call = asyncio.create_task(generator.generate(ctx, pending("0", tmp_path)))
        (exchange,) = workers._workers
        await asyncio.sleep(0)
        held, exchange._unsent = exchange._unsent, []
        await asyncio.sleep(0)  # nothing is sent
        exchange._unsent = held
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_request_after_the_end_of_its_call_is_told(
    placed: Place, encoder: PromptTokenizer, tmp_path: Path
) -> None:
    engine = Engine(encoder.tokenizer)
    async with placed("Leaving", 1) as (generator, _):
        ctx = context(encoder, engine)
        await generator.generate(ctx, pending("0", tmp_path))
        made = await generator.generate(ctx, pending("0", tmp_path))
    assert isinstance(made, Sample)
    assert made.text == (
        "PluginError: The generator 'Leaving' asked its context after the call had ended; await all that "
        "a call starts before it returns."
    )
    assert not engine.asked


async def test_generators_are_answered_while_their_worker_stops(
    placed: Place, encoder: PromptTokenizer, tmp_path: Path
) -> None:
    engine = Engine(encoder.tokenizer)
    engine.waiting = True
    async with placed("Tidy", 1) as (generator, workers):
        call = asyncio.ensure_future(generator.generate(context(encoder, engine), pending("0", tmp_path)))
        await until(lambda: bool(engine.asked))
        engine.waiting = False
        async with asyncio.timeout(10):
            await workers.stop()
        assert (tmp_path / "tidied").exists()
        assert [rid for rid, _ in engine.asked] == ["first", "last"]
        call.cancel()
        await asyncio.wait([call])


async def test_a_timeout_is_a_failed_sample(placed: Place, encoder: PromptTokenizer, tmp_path: Path) -> None:
    engine = Engine(encoder.tokenizer)
    engine.waiting = True
    async with placed("Waiting", 1) as (generator, _):
        pipeline = pipeline_of(encoder, generator, generator_timeout=0.2)
        [made], _ = await pipeline._generate(context(encoder, engine), [pending("0", tmp_path)])
    assert made[0].failure == "timed_out"
    assert (tmp_path / "ended").exists()


async def test_a_generator_that_holds_up_its_worker_ends_the_run(
    placed: Place, encoder: PromptTokenizer, tmp_path: Path
) -> None:
    async with placed("Waiting", 1, worker_health_limit=0.3) as (generator, workers):
        ctx = context(encoder, Engine(encoder.tokenizer))
        call = asyncio.ensure_future(generator.generate(ctx, pending("block", tmp_path)))
        await until((tmp_path / "began").exists)
        call.cancel()
        with pytest.raises(
            WorkerError, match="Rollout worker 0 did not end the generator 'Waiting', which was"
        ):
            await call
        workers._workers[0]._actor.kill()


async def test_a_worker_that_dies_ends_its_calls_and_the_run(
    placed: Place, encoder: PromptTokenizer, tmp_path: Path
) -> None:
    engine = Engine(encoder.tokenizer)
    engine.waiting = True
    died = r"^Rollout worker 1 died: SIGKILL ended its process\.$"
    async with placed("Waiting", 2) as (generator, workers):
        watching = asyncio.ensure_future(workers.watch())
        ctx = context(encoder, engine)
        calls = [
            asyncio.ensure_future(generator.generate(ctx, pending("0", tmp_path, group_id)))
            for group_id in (0, 1, 3)
        ]
        await until(lambda: len(engine.asked) == 3)
        assert not watching.done()
        actor = workers._workers[1]._actor
        assert isinstance(actor, ProcessActor)
        assert actor._process is not None
        os.kill(actor._process.pid, signal.SIGKILL)
        for call in (watching, *calls[1:]):
            with pytest.raises(WorkerError, match=died):
                await call
        with pytest.raises(WorkerError, match=died):
            await generator.generate(ctx, pending("0", tmp_path, group_id=5))
        assert not calls[0].done(), "the other worker goes on"
        calls[0].cancel()
        await asyncio.wait(calls)


async def test_what_a_worker_cannot_build_is_told(placed: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PORTS", 1)
    with pytest.raises(ConfigError, match=r"^The port is taken\.$"):
        async with placed("OnlyHere", 1):
            pass
