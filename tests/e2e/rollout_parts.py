"""Plugin file: a producer that hands on half of each rollout, and a task that gets harder with success."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace

from rlcore.api.config import Config
from rlcore.api.hookspecs import hookimpl
from rlcore.api.producer import Producer, ProducerContext, Rollout
from rlcore.api.records import Component, Source
from rlcore.api.sources import Prompts
from rlcore.api.types import Json, Prompt
from rlcore_sampling.producers import synchronous_producer


class Half:
    """What `synchronous` makes, but of every rollout the half with the longest responses."""

    samples = True

    def __init__(self, config: Config, context: ProducerContext) -> None:
        self._inner: Producer = synchronous_producer(config, context)

    async def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        async with aclosing(self._inner.run(done, steps)) as rollouts:
            async for rollout in rollouts:
                kept = sorted(rollout.groups, key=lambda group: -len(group.samples[0].response_ids))
                kept = sorted(kept[: len(kept) // 2], key=lambda group: group.group_id)
                metrics = {**rollout.metrics, "rollout/halved": len(rollout.groups) - len(kept)}
                yield replace(rollout, groups=tuple(kept), metrics=metrics)

    def publication(self, version: int) -> AbstractAsyncContextManager[None]:
        return self._inner.publication(version)

    def published(self, version: int) -> None:
        self._inner.published(version)

    def suspended(self) -> AbstractAsyncContextManager[None]:
        return self._inner.suspended()

    def state(self) -> Mapping[str, Json]:
        return self._inner.state()

    def load(self, state: Mapping[str, Json]) -> None:
        self._inner.load(state)


class Harder:
    """Digits to copy: one more for every group whose mean reward is above 0."""

    def __init__(self, config: Config) -> None:
        pass

    def prompts(self) -> Prompts:
        return Prompts(train=[_prompt(0, 1)], held_out={"harder": [_prompt(0, 2)]})

    def cursor(self, prompts: Sequence[Prompt], seed: int) -> "HarderCursor":
        return HarderCursor()


class HarderCursor:
    def __init__(self) -> None:
        self._taken, self._digits = 0, 1

    def take(self, n: int) -> list[tuple[Prompt, int]]:
        first, self._taken = self._taken, self._taken + n
        return [(_prompt(number, self._digits), 0) for number in range(first, self._taken)]

    def learn(self, prompt_id: str, rewards: Sequence[float]) -> None:
        self._digits = min(6, self._digits + (sum(rewards) > 0))

    def metrics(self) -> dict[str, float]:
        return {"rollout/epoch": 0.0, "rollout/digits": self._digits}

    def state(self) -> dict[str, Json]:
        return {"taken": self._taken, "digits": self._digits}

    def load(self, state: Mapping[str, Json]) -> None:
        self._taken, self._digits = state["taken"], state["digits"]


def _prompt(number: int, digits: int) -> Prompt:
    text = str(number)[-1] * digits
    return Prompt(prompt_id=f"{number}-{digits}", text=text, label=text)


@hookimpl
def rlcore_producers() -> list[Component]:
    return [Component(name="half", factory=f"{__name__}:Half", summary="hands on half")]


@hookimpl
def rlcore_sources() -> list[Source]:
    return [Source(name="harder", factory=f"{__name__}:Harder", summary="gets harder")]
