"""The producer of rollouts: prompts in, scored and filtered groups out, in an order that repeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

from rlcore.config.run import RunConfig
from rlcore.data.cursor import PromptCursor
from rlcore.data.tokens import PromptEncoder
from rlcore.engines.client import together
from rlcore.errors import DataError, PluginError, RlcoreError, StaleWeightsError
from rlcore.interfaces import Filter, Generator, Verdict
from rlcore.rollout.buffer import DataBuffer, Draw
from rlcore.rollout.context import Client, EngineContext, Engines, greedy
from rlcore.rollout.group import GroupMaker, Outcome, Scorer, Versions, new_samples
from rlcore.rollout.measure import EvalResult, Tally
from rlcore.types import Group, Json, Prompt, Sampling


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The groups of one step, by group id; there may be none. `version`: the weights at its start.

    `metrics`: flat `rollout/…`, `reward/…` and `time/…` values.
    """

    step: int
    version: int
    groups: tuple[Group, ...]
    metrics: Mapping[str, float]


class Producer:
    """Makes rollouts, at most `max_staleness` weight versions ahead of the consumer.

    `version` is what the engines hold at the start; the consumer calls `published` for each later one.
    """

    samples = True
    """Whether its engines need the weights of every step."""

    def __init__(
        self,
        *,
        run: RunConfig,
        prompts: Sequence[Prompt],
        encoder: PromptEncoder,
        clients: Sequence[Client],
        generator: Generator,
        rewards: Scorer,
        filters: Sequence[Filter] = (),
        version: int = 0,
    ) -> None:
        self._run = run
        self._encoder = encoder
        self._engines = Engines(clients, encoder.tokenizer, run.engine_concurrency)
        self._maker = GroupMaker(generator, rewards, run.seed)
        self._filters = filters
        self._version = version
        self._cursor = PromptCursor(prompts, run.seed)
        # One rollout in the making, and those that wait.
        self._buffer = DataBuffer(run.prompts_per_step * (run.max_staleness + 2))
        self._next_group = 0
        self._left: list[Group] = []
        self.sampling = Sampling(
            max_tokens=run.max_response_tokens,
            temperature=run.temperature,
            top_p=run.top_p,
            top_k=run.top_k,
            min_p=run.min_p,
            stop=run.stop,
        )

    # --- the consumer's side ---------------------------------------------------------------------------

    def published(self, version: int) -> None:
        """The engines now hold `version`."""
        self._version = version

    async def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        """Rollouts of the steps `done` + 1 to `steps`.

        Asking for one means that all earlier ones were trained on and their weights published. With
        `max_staleness` 0 nothing is generated between two questions. Close it (`aclose`) to stop early.
        """
        permits = asyncio.Semaphore(self._run.max_staleness)
        ready: asyncio.Queue[Rollout | BaseException] = asyncio.Queue()

        async def produce() -> None:
            try:
                for step in range(done + 1, steps + 1):
                    await permits.acquire()
                    ready.put_nowait(await self._rollout(step))
            except BaseException as error:
                ready.put_nowait(error)
                raise

        worker = asyncio.create_task(produce())
        try:
            for _ in range(done, steps):
                permits.release()
                rollout = await ready.get()
                if isinstance(rollout, BaseException):
                    raise rollout
                self._hand_over(rollout)
                yield rollout
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)

    def _hand_over(self, rollout: Rollout) -> None:
        behind = self._version - rollout.version
        if behind > self._run.max_staleness:
            raise StaleWeightsError(
                f"The rollout of step {rollout.step} is {behind} weight versions old;"
                f" max_staleness allows {self._run.max_staleness}."
            )
        self._buffer.take(group.group_id for group in rollout.groups)

    def state(self) -> dict[str, Json]:
        """Cursor and buffer as JSON: everything that was drawn and not handed over, and what comes next."""
        return {
            "cursor": self._cursor.state(),
            "buffer": self._buffer.state(),
            "next_group": self._next_group,
        }

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken. Raises `CheckpointError` where the data are not the same."""
        self._cursor.load(state["cursor"])
        self._buffer.load(state["buffer"])
        self._next_group = int(state["next_group"])
        self._left = self._buffer.waiting()

    # --- one rollout -----------------------------------------------------------------------------------

    async def rollout(self, step: int) -> Rollout:
        """The groups of `step`, with the weights that the engines hold now.

        New prompts replace dropped groups for at most `max_refills` rounds; then it goes on with fewer
        groups, or none, and `rollout/groups_missing` says how many. Where it fails or is cancelled, what
        was drawn stays in the buffer.
        """
        rollout = await self._rollout(step)
        self._hand_over(rollout)
        return rollout

    async def _rollout(self, step: int) -> Rollout:
        """`rollout`, whose groups still wait in the buffer."""
        begin = time.perf_counter()
        version, tally, generating, rounds = self._version, Tally(), 0.0, 0
        versions = Versions(oldest=version, newest=version + self._run.max_staleness)
        groups = self._take_left(version)
        wanted = self._run.prompts_per_step
        try:
            while len(groups) < wanted and rounds <= self._run.max_refills:
                started = time.perf_counter()
                draws = self._draw(wanted - len(groups))
                outcomes = await self._make(draws, self.sampling, versions, count=self._run.group_size)
                generating += max(outcome.generated for outcome in outcomes) - started
                groups += self._settle(outcomes, tally)
                rounds += 1
        except BaseException:
            self._buffer.give_back()
            self._left = groups
            raise
        total = time.perf_counter() - begin
        metrics = tally.metrics() | {
            "rollout/groups": len(groups),
            "rollout/groups_missing": wanted - len(groups),
            "rollout/refills": max(rounds - 1, 0),
            "rollout/epoch": self._cursor.epoch,
            "time/rollout_s": total,
            "time/generate_s": generating,
            "time/reward_s": total - generating,
        }
        groups.sort(key=lambda group: group.group_id)
        return Rollout(step=step, version=version, groups=tuple(groups), metrics=metrics)

    def _draw(self, count: int) -> list[Draw]:
        """Returned draws first, then new ones."""
        draws = self._buffer.restart(count)
        taken = self._cursor.take(count - len(draws))
        new = [
            Draw(group_id=group_id, prompt=prompt, epoch=epoch)
            for group_id, (prompt, epoch) in enumerate(taken, self._next_group)
        ]
        self._next_group += len(new)
        self._buffer.start(new)
        return draws + new

    async def _make(
        self, draws: Sequence[Draw], sampling: Sampling, versions: Versions, *, count: int, prefix: str = ""
    ) -> list[Outcome]:
        """The outcomes of all draws, in their order.

        Synchronous runs repeat exactly, so there the engines are to batch alike: where one request makes one
        group, all requests begin together, in as many turns as it takes to have all of a turn in flight.
        """
        at_once = self._maker.by_group and self._run.max_staleness == 0
        turn = self._engines.width if at_once else len(draws)
        outcomes: list[Outcome] = []
        for start in range(0, len(draws), turn):
            part = draws[start : start + turn]
            contexts = self._engines.contexts(len(part), sampling, together=at_once)
            outcomes += await together(
                self._make_one(draw, ctx, versions, count, prefix)
                for draw, ctx in zip(part, contexts, strict=True)
            )
        return outcomes

    async def _make_one(
        self, draw: Draw, ctx: EngineContext, versions: Versions, count: int, prefix: str
    ) -> Outcome:
        ids = self._encoder.encode(draw.prompt)
        fresh = new_samples(draw, ids, count=count, run_seed=self._run.seed, prefix=prefix)
        made = await self._maker.generate(ctx, draw, fresh, versions)
        ctx.close()
        return await self._maker.score(made)

    def _settle(self, outcomes: Sequence[Outcome], tally: Tally) -> list[Group]:
        """Filters the round's groups in order and books every draw.

        A round in which every request was refused raises the first refusal: the run cannot go on.
        """
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        if len(errors) == len(outcomes):
            raise errors[0]
        kept = []
        for outcome in outcomes:
            tally.add(outcome)
            group = self._filtered(outcome.group, tally) if outcome.reason is None else None
            if group is None:
                self._buffer.drop(outcome.group.group_id)
            else:
                kept.append(group)
        self._buffer.finish(kept)
        return kept

    def _filtered(self, group: Group, tally: Tally) -> Group | None:
        for judge in self._filters:
            verdict = _judged(judge, group)
            if verdict.group is None:
                tally.drop(verdict.reason or "filtered")
                return None
            group = verdict.group
        return group

    def _take_left(self, version: int) -> list[Group]:
        """Groups that an earlier rollout left in the buffer; those too old are generated again."""
        left, self._left = self._left, []
        oldest = version - self._run.max_staleness
        fresh = [group for group in left if min(_versions(group), default=version) >= oldest]
        kept = fresh[: self._run.prompts_per_step]
        self._left = fresh[self._run.prompts_per_step :]
        self._buffer.expire(group for group in left if min(_versions(group), default=version) < oldest)
        return kept

    # --- evaluation ------------------------------------------------------------------------------------

    async def evaluate(self, prompts: Sequence[Prompt]) -> EvalResult:
        """One greedy answer to each prompt, scored. Nothing of it touches the cursor or the buffer."""
        if not prompts:
            raise DataError("A held-out set has no prompts to evaluate on.")
        versions = Versions(oldest=self._version, newest=self._version)
        draws = [Draw(group_id=number, prompt=prompt, epoch=0) for number, prompt in enumerate(prompts)]
        outcomes = await self._make(draws, greedy(self.sampling), versions, count=1, prefix="eval-")
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        if errors and len(errors) == len(outcomes):
            raise errors[0]
        return EvalResult.of([outcome.group.samples for outcome in outcomes])


def _versions(group: Group) -> set[int]:
    return {span.version for sample in group.samples for span in sample.spans}


def _judged(judge: Filter, group: Group) -> Verdict:
    """A filter is a plugin: its faults are told as such."""
    try:
        return judge.judge(group)
    except RlcoreError:
        raise
    except Exception as error:
        name = type(judge).__name__
        raise PluginError(f"The filter {name} failed: {type(error).__name__}: {error}.") from error
