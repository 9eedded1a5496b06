"""Plugin file of the negative controls: learning must come from the reward's order, and from nothing else."""

import random
from collections.abc import Iterable, Sequence

from rlcore.api.config import Config
from rlcore.api.hookspecs import hookimpl
from rlcore.api.records import Component
from rlcore.api.types import Sample, Score


class Shuffled:
    """GRPO's advantages, given to samples of the batch at random."""

    def __init__(self, config: Config) -> None:
        from rlcore_grpo.advantage import GroupAdvantage
        from rlcore_grpo.config import GroupAdvantageConfig

        self._grpo = GroupAdvantage(GroupAdvantageConfig())
        self._calls = 0

    def estimate(self, batch):  # type: ignore[no-untyped-def]  # a user's plugin file need not be typed
        import torch

        self._calls += 1
        generator = torch.Generator().manual_seed(self._calls)
        order = torch.randperm(len(batch), generator=generator)
        rewards = batch.per_sample["reward"][order]
        return self._grpo.estimate(batch.with_columns(per_sample={"reward": rewards}))


class Random:
    """A reward that knows nothing of the answer."""

    def __init__(self, config: Config) -> None:
        pass

    def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        return [Score(value=random.Random(f"{s.seed}/{s.index}/{s.text}").random()) for s in samples]


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    yield Component(name="shuffled", factory=f"{__name__}:Shuffled", summary="advantages at random")


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    yield Component(name="random", factory=f"{__name__}:Random", summary="a random reward")
