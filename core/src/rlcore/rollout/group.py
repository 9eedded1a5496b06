"""One draw becomes one group: generated, looked over, generated again where it must be, and scored."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rlcore.api.errors import PluginError, RlcoreError, StaleWeightsError
from rlcore.api.generation import GenerationContext, Generator, GroupGenerator, GroupScorer
from rlcore.api.types import RECORDED, GenerationStatus, Group, RewardStatus, Sample
from rlcore.engines.client import together
from rlcore.engines.client_http import RefusedError
from rlcore.rollout.buffer import Draw
from rlcore.rollout.rewards import ERROR_KEY
from rlcore.rollout.seeds import sample_seed

T = TypeVar("T")
CRASHED = "crashed"
"""The reason of a group whose generator raised, or returned what it may not."""
UNFIT = "unfit_prompt"
"""The reason of a group whose prompt is too long, or cannot be formatted."""
UNUSABLE = frozenset({GenerationStatus.ABORTED, GenerationStatus.FAILED})
"""Generations that are tried once more, and then cost the whole group."""


@dataclass(frozen=True, kw_only=True)
class GroupOutcome:
    """What became of a draw.

    `reason`: why `group` is not to be trained on (None: it is). `aborted` and `failed` count trajectories,
    `failures` the failed ones by `Sample.failure`, `reward_failed` and `reward_timed_out` samples, first
    tries included. `error`: the engine's last refusal, what crashed, or why there is no score. `generated`:
    when the generation ended (`time.perf_counter`).
    """

    group: Group
    reason: str | None
    aborted: int
    failed: int
    failures: Mapping[str, int] = field(default_factory=dict)
    reward_failed: int = 0
    reward_timed_out: int = 0
    error: RlcoreError | None = None
    generated: float

    @property
    def is_answered(self) -> bool:
        """The engine has generated every sample, whatever the rewards make of them."""
        return all(sample.status not in UNUSABLE for sample in self.group.samples)

    @property
    def is_unscored(self) -> bool:
        """The rewards gave a sample no score."""
        return self.reward_failed + self.reward_timed_out > 0

    @classmethod
    def unanswered(
        cls, draw: Draw, fresh: Sequence[Sample], reason: str, error: PluginError | None = None
    ) -> GroupOutcome:
        """Of `fresh` samples that got no answer. `error`: of the generator that failed on them."""
        samples = tuple(replace(sample, status=GenerationStatus.FAILED) for sample in fresh)
        return cls(
            group=Group(group_id=draw.group_id, prompt=draw.prompt, samples=samples, epoch=draw.epoch),
            reason=reason,
            aborted=0,
            failed=0,
            error=error,
            generated=time.perf_counter(),
        )


@dataclass(frozen=True, kw_only=True)
class Versions:
    """The weight versions that a sample may carry, both ends included."""

    oldest: int
    newest: int

    def check(self, samples: Iterable[Sample]) -> None:
        """Raises `StaleWeightsError` where a token was sampled with other weights, or nobody knows which."""
        for sample in samples:
            if not sample.spans:
                raise StaleWeightsError(
                    f"Sample {sample.rollout_id} does not say which weights it came from."
                )
            for span in sample.spans:
                if not self.oldest <= span.version <= self.newest and span.version != RECORDED:
                    raise StaleWeightsError(
                        f"Sample {sample.rollout_id} was generated with weight version {span.version},"
                        f" expected {self.oldest}"
                        + (f" to {self.newest}." if self.newest > self.oldest else ".")
                    )


def new_samples(
    draw: Draw, prompt_ids: tuple[int, ...], *, count: int, run_seed: int, prefix: str
) -> list[Sample]:
    """`count` pending samples of a draw; `prefix` keeps the requests of an evaluation apart."""
    prompt, name = draw.prompt, f"{prefix}{draw.group_id}"
    first = Sample(
        prompt=prompt,
        prompt_ids=prompt_ids,
        group_id=draw.group_id,
        index=0,
        rollout_id=name,
        attempt=draw.attempt,
    )
    return [
        first.but(
            index=index,
            rollout_id=f"{name}.{index}",
            seed=sample_seed(run_seed, prompt.prompt_id, index, draw.attempt, draw.epoch),
        )
        for index in range(count)
    ]


class GroupMaker:
    """Drives one generator and one reward."""

    def __init__(self, generator: Generator, scorer: GroupScorer, run_seed: int) -> None:
        self._generator = generator
        self._scorer = scorer
        self._run_seed = run_seed
        self._name = getattr(generator, "name", type(generator).__name__)
        self._group_generator = generator if isinstance(generator, GroupGenerator) else None

    @property
    def by_group(self) -> bool:
        """Whether one call of the generator makes a whole group."""
        return self._group_generator is not None

    async def generate(
        self, ctx: GenerationContext, draw: Draw, fresh: Sequence[Sample], versions: Callable[[], Versions]
    ) -> GroupOutcome:
        """The pending samples `fresh` of `draw`, answered.

        What was aborted or failed is generated once more (`attempt` + 1, another seed); what is still amiss
        then is the outcome's `reason`. `versions` is asked when the generation has ended. A request that the
        engine refused is a failed sample; an engine that cannot be reached, or took too long, raises
        `EngineError`; a generator that fails, `PluginError`.
        """
        trajectories, error = await self._generate(ctx, fresh)
        bad = _unusable(trajectories)
        amiss = [*bad.values()]
        if bad:
            again, error = await self._generate(ctx, [self._retried(fresh[place], draw) for place in bad])
            for place, trajectory in zip(bad, again, strict=True):
                trajectories[place] = trajectory
            bad = _unusable(trajectories)
            amiss += bad.values()
        samples = [sample for trajectory in trajectories for sample in trajectory]
        generated = time.perf_counter()
        versions().check(sample for sample in samples if sample.status not in UNUSABLE)
        return GroupOutcome(
            group=Group(group_id=draw.group_id, prompt=draw.prompt, samples=tuple(samples), epoch=draw.epoch),
            reason=next((sample.status.value for sample in bad.values()), None),
            aborted=sum(sample.status is GenerationStatus.ABORTED for sample in amiss),
            failed=sum(sample.status is GenerationStatus.FAILED for sample in amiss),
            failures=Counter(sample.failure for sample in amiss if sample.failure is not None),
            error=error if bad else None,
            generated=generated,
        )

    async def _generate(
        self, ctx: GenerationContext, samples: Sequence[Sample]
    ) -> tuple[list[list[Sample]], RefusedError | None]:
        """A trajectory (one sample, or several where it was split) for each of `samples`."""
        if self._group_generator is None:
            parts = await together(self._generate_one(ctx, sample) for sample in samples)
            return [part[0] for part in parts], next((part[1] for part in parts if part[1]), None)
        try:
            with self._blamed():
                found = [[sample] for sample in await self._group_generator.generate_group(ctx, samples)]
        except RefusedError as error:
            return [[_refused(sample)] for sample in samples], error
        if len(found) != len(samples):
            raise PluginError(f"The generator {self._name} made {len(found)} samples of {len(samples)}.")
        self._check(found, samples)
        return found, None

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """What the generator raises is its fault; so is a cancellation, unless this task is to end."""
        try:
            yield
        except RlcoreError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            raise PluginError(
                f"The generator {self._name} failed: {type(error).__name__}: {error}."
            ) from error

    async def _generate_one(
        self, ctx: GenerationContext, sample: Sample
    ) -> tuple[list[Sample], RefusedError | None]:
        try:
            with self._blamed():
                found = await self._generator.generate(ctx, sample)
        except RefusedError as error:
            return [_refused(sample)], error
        trajectory = found if isinstance(found, list) else [found]
        self._check([trajectory], [sample])
        return trajectory, None

    def _check(self, trajectories: Sequence[Sequence[Sample]], asked: Sequence[Sample]) -> None:
        """A generator is a plugin: what it returns is looked at where it comes in."""
        for trajectory, sample in zip(trajectories, asked, strict=True):
            if not trajectory:
                raise PluginError(f"The generator {self._name} made nothing of sample {sample.rollout_id}.")
            for part in trajectory:
                tokens = len(part.response_ids)
                if not tokens == len(part.loss_mask) == len(part.log_probs):
                    raise PluginError(
                        f"The generator {self._name} returned {tokens} response tokens with"
                        f" {len(part.loss_mask)} masks and {len(part.log_probs)} log-probs."
                    )
                starts = [span.start for span in part.spans]
                if starts and (starts[0] != 0 or starts != sorted({*starts}) or starts[-1] > tokens):
                    raise PluginError(
                        f"The generator {self._name} returned {tokens} response tokens with spans that start"
                        f" at {starts}, expected 0 and then larger ones."
                    )
                if part.status is GenerationStatus.PENDING or part.rollout_id != sample.rollout_id:
                    raise PluginError(
                        f"The generator {self._name} returned sample {part.rollout_id!r} as {part.status}"
                        f" for {sample.rollout_id!r}."
                    )

    def _retried(self, sample: Sample, draw: Draw) -> Sample:
        attempt = sample.attempt + 1
        seed = sample_seed(self._run_seed, draw.prompt.prompt_id, sample.index, attempt, draw.epoch)
        return replace(sample, attempt=attempt, seed=seed)

    async def score(self, outcome: GroupOutcome) -> GroupOutcome:
        """`outcome` scored, unless it is amiss already; once more where a sample got no score.

        Where the generator scored all samples, the reward is not asked.
        """
        if outcome.reason is not None or all(map(_is_scored, outcome.group.samples)):
            return outcome
        statuses: list[RewardStatus] = []
        for _ in range(2):
            samples = await self._scorer.score(outcome.group.samples)
            unscored = [sample for sample in samples if not _is_scored(sample)]
            statuses += [sample.reward_status for sample in unscored]
            if not unscored:
                break
        first = unscored[0] if unscored else None
        return replace(
            outcome,
            group=replace(outcome.group, samples=tuple(samples)),
            reason=None if first is None else f"reward_{first.reward_status}",
            error=None if first is None else _no_score(first),
            reward_failed=sum(status is RewardStatus.FAILED for status in statuses),
            reward_timed_out=sum(status is RewardStatus.TIMED_OUT for status in statuses),
        )


def _is_scored(sample: Sample) -> bool:
    return sample.reward_status is RewardStatus.SCORED


def _no_score(sample: Sample) -> PluginError:
    """Why the rewards gave `sample` none."""
    why = sample.metadata.get(ERROR_KEY, sample.reward_status)
    return PluginError(f"The rewards give no score: {why}.")


def _refused(sample: Sample) -> Sample:
    return replace(sample, status=GenerationStatus.FAILED, failure="refused")


def _unusable(trajectories: Sequence[Sequence[Sample]]) -> dict[int, Sample]:
    """Place → sample of the trajectories with an unusable one."""
    return {
        place: sample
        for place, trajectory in enumerate(trajectories)
        for sample in trajectory
        if sample.status in UNUSABLE
    }
