"""One answer to each prompt."""

from collections.abc import Sequence

from rlcore import GenerationContext, Sample
from rlcore_single_turn.config import SingleTurnConfig
from rlcore_toolkit import answered


class SingleTurn:
    """A `Generator` and a `GroupGenerator`: prompt in, one response out."""

    def __init__(self, config: SingleTurnConfig) -> None:
        self._config = config

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        """One request for one sample."""
        return (await self.generate_group(ctx, [sample]))[0]

    async def generate_group(self, ctx: GenerationContext, samples: Sequence[Sample]) -> list[Sample]:
        """One request for all samples, which share their prompt; the first one's seed stands for all."""
        first = samples[0]
        policy = self._config.policy_of(first.prompt)
        completions = await ctx.complete(
            first.prompt_ids,
            n=len(samples),
            seed=first.seed,
            rid=f"{first.rollout_id}-{first.attempt}",
            policy="" if policy is None else str(policy),
        )
        return [answered(sample, done) for sample, done in zip(samples, completions, strict=True)]
