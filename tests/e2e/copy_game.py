"""An environment that says a digit in each of three turns, and a generator that is one function."""

from collections.abc import Iterable

from rlcore import Component, GenerationContext, Sample, hookimpl
from rlcore_environment.protocol import Step
from rlcore_toolkit import answered

TURNS = 3


class CopyGame:
    """A right digit is worth 1; every eleventh seed crashes."""

    async def reset(self, sample: Sample) -> str:
        self._seed, self._turn = int(sample.prompt.metadata["seed"]), 0
        if self._seed % 11 == 0:
            raise RuntimeError("out of order")
        return self._digit()

    async def step(self, text: str) -> Step:
        reward = float(text.strip() == self._digit()[0])
        self._turn += 1
        return Step(observation=self._digit(), reward=reward, done=self._turn == TURNS)

    def _digit(self) -> str:
        return f"{(self._seed + self._turn) % 10}="


async def generate(ctx: GenerationContext, sample: Sample) -> Sample:
    (done,) = await ctx.complete(sample.prompt_ids, seed=sample.seed, rid=sample.rollout_id)
    return answered(sample, done)


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    yield Component(name="own", factory=f"{__name__}:generate", summary="one answer")
