"""Plugin file: a generator whose environment takes its time between two turns."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

from pydantic import Field

from rlcore.api.config import Config
from rlcore.api.generation import GenerationContext
from rlcore.api.hookspecs import hookimpl
from rlcore.api.records import Component
from rlcore.api.types import GenerationStatus, Sample
from rlcore_toolkit import Trajectory


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
        turns, text = self._config.turns, ""
        trajectory = Trajectory(ctx, sample)
        for turn in range(turns):
            if turn:
                await asyncio.sleep(self._seconds(sample.seed, turn))
            text += (await trajectory.answer(max(1, ctx.sampling.max_tokens // turns))).text
        return trajectory.end(GenerationStatus.COMPLETED, text)

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
