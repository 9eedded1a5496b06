"""The producer `my_plugin`."""

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace

from rlcore import Group, Json, Producer, ProducerContext, Rollout
from rlcore_sampling.producers import synchronous_producer

from rlcore_my_plugin.config import MyPluginConfig


class MyPlugin:
    """What `synchronous` makes, of which a share is handed on."""

    samples = True

    def __init__(self, config: MyPluginConfig, context: ProducerContext) -> None:
        self._share = config.share
        self._inner: Producer = synchronous_producer(config, context)

    async def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        """The metric tells how many groups were left out."""
        async with aclosing(self._inner.run(done, steps)) as rollouts:
            async for rollout in rollouts:
                selection = most_different(rollout.groups, self._share)
                left_out = len(rollout.groups) - len(selection)
                metrics = {**rollout.metrics, "rollout/left_out": left_out}
                yield replace(rollout, groups=tuple(selection), metrics=metrics)

    def publication(self, version: int) -> AbstractAsyncContextManager[None]:
        """The inner producer's."""
        return self._inner.publication(version)

    def published(self, version: int) -> None:
        """Tell the inner producer."""
        self._inner.published(version)

    def suspended(self) -> AbstractAsyncContextManager[None]:
        """The inner producer's."""
        return self._inner.suspended()

    def state(self) -> Mapping[str, Json]:
        """The inner producer's: nothing else is remembered."""
        return self._inner.state()

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken."""
        self._inner.load(state)


def most_different(groups: Sequence[Group], share: float) -> list[Group]:
    """The `share` of the groups with the widest spread of rewards, in their old order."""
    count = math.ceil(share * len(groups))
    widest = sorted(groups, key=_spread, reverse=True)[:count]
    return sorted(widest, key=lambda group: group.group_id)


def _spread(group: Group) -> float:
    rewards = [sample.score.value for sample in group.samples if sample.score is not None]
    return max(rewards, default=0.0) - min(rewards, default=0.0)
