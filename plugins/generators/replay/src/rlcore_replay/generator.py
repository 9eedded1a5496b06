"""Responses that a run has saved, as if they were sampled now."""

from dataclasses import replace
from pathlib import Path

from rlcore import RECORDED, GenerationContext, GenerationStatus, Sample, Span
from rlcore_replay.config import ReplayConfig
from rlcore_replay.samples import Archive, Saved
from rlcore_toolkit import answered


class Replay:
    """Tokens, masks, log-probs, text and status of a saved sample; the reward is computed anew.

    Evaluation and baselines are about the present weights: the engine answers.
    """

    def __init__(self, config: ReplayConfig) -> None:
        """Raises `DataError` where there is nothing to replay."""
        self._config = config
        self._archive = Archive(Path(config.path))

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample | list[Sample]:
        """The trajectory that was saved for the sample's prompt and index."""
        if sample.is_aside:
            return await _answered(ctx, sample)
        saved = self._archive.find(sample.prompt.prompt_id, sample.group_id, sample.index)
        if not saved:
            if self._config.missing == "generate":
                return await _answered(ctx, sample)
            return replace(sample, status=GenerationStatus.FAILED, failure="not_saved")
        if saved[0].prompt_ids != sample.prompt_ids:
            return replace(sample, status=GenerationStatus.FAILED, failure="other_prompt")
        if any(len(part.response_ids) > ctx.sampling.max_tokens for part in saved):
            return replace(sample, status=GenerationStatus.FAILED, failure="too_long")
        return [_replayed(sample, part) for part in saved]


def _replayed(sample: Sample, saved: Saved) -> Sample:
    return replace(
        sample,
        prompt_ids=saved.prompt_ids,
        response_ids=saved.response_ids,
        loss_mask=saved.loss_mask,
        log_probs=saved.log_probs,
        text=saved.text,
        spans=(Span(start=0, version=RECORDED, policy=saved.policy),),
        status=saved.status,
        metadata=saved.metadata,
        metrics={"replayed": 1.0},
    )


async def _answered(ctx: GenerationContext, sample: Sample) -> Sample:
    rid = f"{sample.rollout_id}-{sample.attempt}"
    (done,) = await ctx.complete(sample.prompt_ids, seed=sample.seed, rid=rid)
    return replace(answered(sample, done), metrics={"replayed": 0.0})
