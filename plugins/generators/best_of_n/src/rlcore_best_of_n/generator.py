"""The best of `n` candidates is the sample."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from rlcore import GenerationContext, GenerationStatus, RewardStatus, Sample
from rlcore_best_of_n.config import BestOfNConfig
from rlcore_toolkit import answered


class BestOfN:
    """One request with `n` answers; ties go to the first.

    Evaluation and baselines have one candidate: they are about the policy itself.
    """

    def __init__(self, config: BestOfNConfig) -> None:
        self._config = config

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        """The best candidate: aborted ones are none, and by reward neither are those without a score."""
        n = 1 if sample.is_aside else self._config.n
        rid = f"{sample.rollout_id}-{sample.attempt}"
        answers = await ctx.complete(sample.prompt_ids, n=n, seed=sample.seed, rid=rid)
        made = [answered(sample, answer) for answer in answers]
        if n == 1:
            return made[0]
        values = await self._values(ctx, made)
        known = [value for value in values if value is not None]
        if not known:
            return next(
                (candidate for candidate in made if candidate.status is GenerationStatus.ABORTED),
                _unscored(made[0]),
            )
        best = values.index(max(known))
        tokens = sum(len(candidate.response_ids) for place, candidate in enumerate(made) if place != best)
        gain = max(known) - fmean(known)
        metrics = {"candidates": len(known), "tokens_not_kept": tokens, "best_minus_mean": gain}
        return replace(made[best], metrics=metrics)

    async def _values(self, ctx: GenerationContext, made: Sequence[Sample]) -> list[float | None]:
        """How good each is; None: it cannot be kept."""
        usable = [candidate for candidate in made if candidate.status is not GenerationStatus.ABORTED]
        if not usable:
            return [None] * len(made)
        if self._config.by == "reward":
            values = iter([_reward(candidate) for candidate in await ctx.score(usable)])
        else:
            values = iter(
                [fmean(candidate.log_probs) if candidate.log_probs else None for candidate in usable]
            )
        return [None if candidate.status is GenerationStatus.ABORTED else next(values) for candidate in made]


def _reward(sample: Sample) -> float | None:
    scored = sample.reward_status is RewardStatus.SCORED and sample.score is not None
    return sample.score.value if scored and sample.score else None


def _unscored(sample: Sample) -> Sample:
    return replace(sample, status=GenerationStatus.FAILED, failure="no_candidate_scored")
