"""Plugin file of a negative control: learning must come from the reward's order, and from nothing else."""

from collections.abc import Iterable

from rlcore import Component, Config, hookimpl


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


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    yield Component(name="shuffled", factory=f"{__name__}:Shuffled", summary="advantages at random")
