"""The generator `my_plugin`."""

from rlcore import GenerationContext, GenerationStatus, Sample
from rlcore_toolkit import answered, turn_seed

from rlcore_my_plugin.config import MyPluginConfig


class MyPlugin:
    """Asks until an answer ends by itself. The last one counts, cut or not."""

    def __init__(self, config: MyPluginConfig) -> None:
        self._attempts = config.attempts

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        """The seed of each request comes from that of the sample, so that a run can be repeated."""
        answer = sample
        for attempt in range(self._attempts):
            [done] = await ctx.complete(
                sample.prompt_ids,
                seed=turn_seed(sample.seed, attempt),
                rid=f"{sample.rollout_id}-{sample.attempt}.{attempt}",
            )
            answer = answered(sample, done)
            if answer.status is not GenerationStatus.TRUNCATED:
                break
        return answer.but(metrics={"attempts": attempt + 1})
