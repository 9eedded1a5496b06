"""What goes wrong in `test_chaos_run.py`: a generator and a reward that fail for some prompts."""

import os
import time
from collections.abc import Iterable, Sequence

from rlcore import Component, Config, GenerationContext, Prompt, Sample, Score, hookimpl
from rlcore_toolkit import answered

FATES = {0: "raises", 1: "raises", 2: "exits", 3: "hangs", 4: "crashes", 5: "crashes once", 6: "crashes once"}
DOOMED = {
    "raises": "reward_failed",
    "exits": "reward_failed",
    "hangs": "reward_timed_out",
    "crashes": "crashed",
}
"""Why a prompt of that fate is dropped; those of any other are trained on."""


def fate(prompt: Prompt) -> str:
    """By the number of the row, a hundred of which have every fate in its share."""
    return FATES.get(int(prompt.metadata["number"]) % 100, "none")


async def generate(ctx: GenerationContext, sample: Sample) -> Sample:
    """One answer, or none."""
    own = fate(sample.prompt)
    if own == "crashes" or (own == "crashes once" and not sample.attempt):
        raise OSError("a tool failed")
    (done,) = await ctx.complete(sample.prompt_ids, seed=sample.seed, rid=sample.rollout_id)
    return answered(sample, done)


class Fickle:
    """A score for most prompts; for others it raises, ends its process, or never answers."""

    def __init__(self, config: Config) -> None:
        pass

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        own = fate(samples[0].prompt)
        if own == "raises":
            raise RuntimeError("no idea")
        if own == "exits":
            os._exit(7)
        if own == "hangs":
            time.sleep(3600)
        return [Score(value=float(len(sample.text) % 3)) for sample in samples]


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    yield Component(name="crashing", factory=f"{__name__}:generate", summary="one answer, or none")


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    yield Component(name="fickle", factory=f"{__name__}:Fickle", summary="a score, or none")
