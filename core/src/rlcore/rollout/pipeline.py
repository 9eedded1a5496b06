"""From a draw to a scored group: encode, generate, score."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rlcore.api.errors import DataError, PluginError
from rlcore.api.generation import GenerationContext, Generator, GroupGenerator, GroupScorer
from rlcore.api.producer import PromptEncoder
from rlcore.api.reward import ANSWER_KEY
from rlcore.api.run_config import RunConfig
from rlcore.api.types import GenerationStatus, Group, RewardStatus, Sample
from rlcore.data.chat import answer_header
from rlcore.engines.client_http import RefusedError
from rlcore.rollout.columns import check_metadata
from rlcore.rollout.context import EngineContext
from rlcore.rollout.draw import CRASHED, UNFIT, UNUSABLE, Draw, GroupOutcome, Versions, new_samples, retried
from rlcore.rollout.generators import blamed, check_generated, name_of
from rlcore.rollout.rewards import ERROR_KEY
from rlcore_machine.tasks import together

TIMED_OUT = "timed_out"
"""The failure of a sample whose generator took longer than `--generator-timeout`."""

_log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class GroupPipeline:
    """Makes the samples of a draw, and their scores: for rollouts and for evaluations.

    `vocabulary`: of the model, whose token ids are below it; None: not known.
    """

    run: RunConfig
    encoder: PromptEncoder
    generator: Generator
    rewards: GroupScorer
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        self._name, self._header = name_of(self.generator), answer_header(self.encoder.tokenizer)
        self._group_generator = self.generator if isinstance(self.generator, GroupGenerator) else None

    @property
    def by_group(self) -> bool:
        """Whether one call of the generator makes a whole group."""
        return self._group_generator is not None

    async def make(
        self,
        draw: Draw,
        ctx: EngineContext,
        versions: Callable[[], Versions],
        *,
        count: int,
        prefix: str = "",
    ) -> GroupOutcome:
        """`count` samples of a draw, generated and scored.

        A generator that fails is an outcome, not an error. So is a prompt that is too long or lacks metadata:
        the checks before the run look only at the first prompts of a large set.
        """

        def fresh_of(ids: tuple[int, ...]) -> list[Sample]:
            return new_samples(draw, ids, count=count, run_seed=self.run.seed, prefix=prefix)

        try:
            check_metadata([draw.prompt], self.run.data.metadata_columns)
            fresh = fresh_of(self.encoder.encode(draw.prompt))
        except DataError as error:
            # Other groups of the round wait for the first request of this one, which never comes.
            ctx.close()
            _log.warning("%s It is left out.", error)
            return GroupOutcome.unanswered(draw, fresh_of(()), UNFIT)
        try:
            outcome = await self.generate(ctx, draw, fresh, versions)
        except PluginError as error:
            _log.warning("Prompt %r, group %d: %s", draw.prompt.prompt_id, draw.group_id, error)
            outcome = GroupOutcome.unanswered(draw, fresh, CRASHED, error)
        finally:
            ctx.close()
        return await self.score(outcome)

    async def generate(
        self, ctx: GenerationContext, draw: Draw, fresh: Sequence[Sample], versions: Callable[[], Versions]
    ) -> GroupOutcome:
        """The pending samples `fresh` of `draw`, generated.

        A sample that was aborted or failed is generated once more, with `attempt` + 1 and another seed. If it
        fails again, its status becomes the outcome's `reason`. `versions` is called when the generation has
        ended. A request that the engine refuses makes a failed sample. An engine that does not answer raises
        `EngineError`, a generator that fails `PluginError`.
        """
        trajectories, error = await self._generate(ctx, fresh)
        bad = _unusable(trajectories)
        amiss = [*bad.values()]
        if bad:
            retries = [retried(fresh[place], draw, run_seed=self.run.seed) for place in bad]
            again, error = await self._generate(ctx, retries)
            for place, trajectory in zip(bad, again, strict=True):
                trajectories[place] = trajectory
            bad = _unusable(trajectories)
            amiss += bad.values()
        samples = [sample for trajectory in trajectories for sample in trajectory]
        generated = time.perf_counter()
        # Asked for only now: weights may have been published while the engine generated.
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

    async def score(self, outcome: GroupOutcome) -> GroupOutcome:
        """`outcome` with scores. If a sample gets none, the group is scored once more.

        Nothing is done for a group that has failed, or that the generator has scored already.
        """
        if outcome.reason is not None or all(map(_is_scored, outcome.group.samples)):
            return outcome
        statuses: list[RewardStatus] = []
        for _ in range(2):
            samples = await self.rewards.score(outcome.group.samples)
            unscored = [sample for sample in samples if not _is_scored(sample)]
            statuses += [sample.reward_status for sample in unscored]
            if not unscored:
                break
        # A group of which no reward judges any sample teaches nothing.
        first = next(iter(unscored if any(sample.score for sample in samples) else samples), None)
        return replace(
            outcome,
            group=replace(outcome.group, samples=tuple(samples)),
            reason=None if first is None else f"reward_{first.reward_status}",
            error=None if first is None else _no_score(first),
            reward_failed=sum(status is RewardStatus.FAILED for status in statuses),
            reward_timed_out=sum(status is RewardStatus.TIMED_OUT for status in statuses),
        )

    async def _generate(
        self, ctx: GenerationContext, samples: Sequence[Sample]
    ) -> tuple[list[list[Sample]], RefusedError | None]:
        """A trajectory for each of `samples`: a list of one sample, or of several if it was split."""
        if self._group_generator is not None:
            return await self._call(ctx, samples)
        calls = await together(self._call(ctx, [sample]) for sample in samples)
        errors = [error for _, error in calls if error is not None]
        return [trajectory for [trajectory], _ in calls], errors[0] if errors else None

    async def _call(
        self, ctx: GenerationContext, samples: Sequence[Sample]
    ) -> tuple[list[list[Sample]], RefusedError | None]:
        """One call of the generator, within its time limit: for a group, or for a single sample."""
        try:
            async with asyncio.timeout(self.run.limits.generator_timeout):
                # Within the time limit: a TimeoutError that the generator raises itself is a crash of it, and
                # not this limit.
                with blamed(self._name):
                    if self._group_generator is not None:
                        group = await self._group_generator.generate_group(ctx, samples)
                        trajectories = [[sample] for sample in group]
                    else:
                        result = await self.generator.generate(ctx, samples[0])
                        trajectories = [result if isinstance(result, list) else [result]]
        except RefusedError as error:
            return [[_failed(sample, "refused")] for sample in samples], error
        except TimeoutError:
            return [[_failed(sample, TIMED_OUT)] for sample in samples], None
        if len(trajectories) != len(samples):
            count = len(trajectories)
            raise PluginError(f"The generator {self._name} made {count} samples of {len(samples)}.")
        check_generated(
            self._name,
            trajectories,
            samples,
            vocabulary=self.vocabulary,
            policies=self.run.policies,
        )
        if self._header:
            trajectories = [[self._with_answer(sample) for sample in parts] for parts in trajectories]
        return trajectories, None

    def _with_answer(self, sample: Sample) -> Sample:
        """`sample` with the text behind the last header of an answer in its metadata, where there is one."""
        ids, size = tuple(sample.response_ids), len(self._header)
        for end in range(len(ids), size - 1, -1):
            if ids[end - size : end] == self._header:
                answer = self.encoder.tokenizer.decode(ids[end:], skip_special_tokens=True)
                if sample.text.endswith(answer):
                    return sample.but(metadata={**sample.metadata, ANSWER_KEY: answer})
                break
        return sample


def _is_scored(sample: Sample) -> bool:
    return sample.reward_status in (RewardStatus.SCORED, RewardStatus.EXEMPT)


def _no_score(sample: Sample) -> PluginError:
    """Why the rewards gave `sample` none."""
    why = sample.metadata.get(ERROR_KEY, sample.reward_status)
    return PluginError(f"The rewards give no score: {why}.")


def _failed(sample: Sample, failure: str) -> Sample:
    return replace(sample, status=GenerationStatus.FAILED, failure=failure)


def _unusable(trajectories: Sequence[Sequence[Sample]]) -> dict[int, Sample]:
    """Place → sample of the trajectories with an unusable one."""
    return {
        place: sample
        for place, trajectory in enumerate(trajectories)
        for sample in trajectory
        if sample.status in UNUSABLE
    }
