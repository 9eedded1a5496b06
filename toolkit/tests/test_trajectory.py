"""Samples of several turns."""

from rlcore import GenerationContext, GenerationStatus, Generator, Sample, Sampling, Span
from rlcore.rollout.context import EngineContext
from rlcore_testing.generators import GeneratorConformance
from rlcore_testing.samples import sample_of
from rlcore_testing.token_engine import CountingReward, TokenEngine
from rlcore_toolkit import Trajectory


class Echo:
    """Three turns; after each, somebody else says "!"."""

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample:
        trajectory, text = Trajectory(ctx, sample), ""
        for _ in range(3):
            if not trajectory.room:
                return trajectory.end(GenerationStatus.TRUNCATED, text)
            done = await trajectory.answer()
            text += done.text
            if done.status is GenerationStatus.ABORTED:
                return trajectory.end(done.status, text)
            if not trajectory.observe(ctx.encode("!")):
                return trajectory.end(GenerationStatus.TRUNCATED, text)
        return trajectory.end(GenerationStatus.COMPLETED, text)


class TestTurns(GeneratorConformance):
    def generator(self) -> Generator:
        return Echo()


async def test_what_is_observed_first_counts_to_the_first_answer() -> None:
    engine = TokenEngine(lambda prompt, seed: "ok")
    engine.version = 4
    ctx = EngineContext(engine, engine.tokenizer, Sampling(max_tokens=50), CountingReward())
    trajectory = Trajectory(ctx, sample_of(prompt_ids=(63,)))
    assert trajectory.observe((1, 2, 3))
    await trajectory.answer()
    engine.version = 5
    await trajectory.answer()
    assert not trajectory.observe((1,) * (trajectory.room + 1))
    sample = trajectory.end(GenerationStatus.COMPLETED, "")
    assert sample.spans == (Span(start=0, version=4), Span(start=6, version=5))
    assert sample.loss_mask == (0, 0, 0, 1, 1, 1, 1, 1, 1)
    assert sample.log_probs[:3] == (0.0, 0.0, 0.0)
