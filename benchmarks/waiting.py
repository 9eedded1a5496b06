"""Plugin file: a generator whose environment takes its time between two turns."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace

from pydantic import Field

from rlcore.config.base import Config
from rlcore.interfaces import GenerationContext
from rlcore.plugins.hookspecs import hookimpl
from rlcore.plugins.records import Component
from rlcore.types import GenerationStatus, Sample, Span


class WaitingConfig(Config):
    """The environment's times."""

    turns: int = Field(3, ge=1, description="answers of the policy in one trajectory")
    shortest: float = Field(0.05, ge=0, description="seconds that the environment takes at least")
    longest: float = Field(0.5, ge=0, description="seconds that it takes at most")
    tail: float = Field(4.0, gt=0, description="the larger, the rarer are long times")


class Waiting:
    """`turns` answers of equal length; between two of them the environment waits and says nothing."""

    def __init__(self, config: WaitingConfig) -> None:
        self._config = config

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        """One trajectory."""
        turns = self._config.turns
        sampling = replace(ctx.sampling, max_tokens=max(1, ctx.sampling.max_tokens // turns))
        for turn in range(turns):
            if turn:
                await asyncio.sleep(self._seconds(sample.seed, turn))
            prompt = sample.prompt_ids + sample.response_ids
            rid = f"{sample.rollout_id}-{sample.attempt}.{turn}"
            (done,) = await ctx.complete(prompt, seed=sample.seed + turn, rid=rid, sampling=sampling)
            start = len(sample.response_ids)
            seen = sample.spans[-1].version if sample.spans else None
            spans = [
                Span(start=start + span.start, version=span.version)
                for span in done.spans
                if span.start or span.version != seen
            ]
            sample = replace(
                sample,
                response_ids=sample.response_ids + done.token_ids,
                loss_mask=sample.loss_mask + (1,) * len(done.token_ids),
                log_probs=sample.log_probs + done.log_probs,
                spans=(*sample.spans, *spans),
                text=sample.text + done.text,
            )
        return replace(sample, status=GenerationStatus.COMPLETED)

    def _seconds(self, seed: int, turn: int) -> float:
        config, dice = self._config, random.Random(f"{seed}/{turn}")
        share = float(dice.random() ** config.tail)
        return config.shortest + (config.longest - config.shortest) * share


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    """The one generator of this file."""
    yield Component(
        name="waiting", factory=f"{__name__}:Waiting", config=WaitingConfig, summary="waits between its turns"
    )
