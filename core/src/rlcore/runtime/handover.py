"""`Handover`: trainer and engines on the same devices, one of them at a time."""

import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from typing import Literal

from rlcore.api.producer import Producer
from rlcore.engines.publish_file import WeightsLocation
from rlcore.serving.engine_group import EngineGroup
from rlcore.workers.trainer_group import TrainerGroup


class State(StrEnum):
    """What happens on the devices. A step goes through all states, from `GENERATE` back to `GENERATE`."""

    GENERATE = "generate"
    DRAIN = "drain"
    """Engines answer no more: their queues are empty, and so are their caches."""
    RELEASE = "release"
    """Engines give back the memory of weights, keys and values."""
    WAKE = "wake"
    """The trainer takes its memory again."""
    TRAIN = "train"
    PUBLISH = "publish"
    """What is not published sleeps; engines take memory for weights again, and get new ones."""
    SLEEP = "sleep"
    """The trainer's weights leave the devices."""
    RESUME = "resume"
    """Engines take memory for keys and values again."""


NEXT: Mapping[State, frozenset[State]] = {
    State.GENERATE: frozenset({State.DRAIN}),
    State.DRAIN: frozenset({State.RELEASE}),
    State.RELEASE: frozenset({State.WAKE}),
    State.WAKE: frozenset({State.TRAIN}),
    State.TRAIN: frozenset({State.PUBLISH, State.SLEEP, State.DRAIN}),
    State.PUBLISH: frozenset({State.SLEEP}),
    State.SLEEP: frozenset({State.RESUME}),
    State.RESUME: frozenset({State.GENERATE}),
}
"""State → the states that may follow. `TRAIN` leads to `SLEEP` after a checkpoint, which changes no weights.
It leads to the next step's `DRAIN` in a run on given responses, which publishes only before evaluations."""

_HANDOVER = (State.DRAIN, State.RELEASE, State.WAKE, State.SLEEP, State.RESUME)
"""The states that cost time without generating, training or publishing."""
Sleep = Literal["none", "optimizer", "all"]


class Handover:
    """Lets trainer and engines take turns.

    `shares`: they are on the same devices, and engines rest while the trainer works; otherwise they keep what
    they have, and the states only have names. `sleep`: what of the trainer leaves the devices.
    """

    def __init__(self, trainer: TrainerGroup, engines: EngineGroup, *, shares: bool, sleep: Sleep) -> None:
        self._trainer, self._engines = trainer, engines
        self._shares, self._sleep = shares, sleep
        self.state = State.TRAIN
        """First the trainer has its models on the devices, and engines wait for weights."""
        self._seconds: dict[State, float] = {}
        self._since = time.perf_counter()
        self._freed = 0

    def enter(self, state: State) -> None:
        """The next state."""
        assert state in NEXT[self.state], f"{self.state} leads to {state}"
        now = time.perf_counter()
        self._seconds[self.state] = self._seconds.get(self.state, 0.0) + now - self._since
        self.state, self._since = state, now

    async def to_trainer(self, *, keep_weights: bool = False) -> None:
        """Go from the last answer to the training step. `keep_weights`: the engines keep theirs."""
        self.enter(State.DRAIN)
        if self._shares:
            await self._engines.drain()
        self.enter(State.RELEASE)
        if self._shares:
            await self._engines.release(keep_weights=keep_weights)
        # Only now is there room for the trainer's models.
        self.enter(State.WAKE)
        if self._sleep != "none":
            await self._trainer.wake()
        self.enter(State.TRAIN)

    async def publish(self, location: WeightsLocation, *, keep_cache: bool) -> None:
        """Have the engines load `location`. The trainer first frees what it does not need for that."""
        self.enter(State.PUBLISH)
        if self._sleep != "none":
            # Buckets are made from the policy's weights on the device, so it decides which of them stay.
            await self._trainer.sleep("publish" if self._sleep == "all" else self._sleep)
        await self._engines.publish(location, keep_cache=keep_cache)

    async def to_engines(self) -> None:
        """Go from the publication to the next answer."""
        self.enter(State.SLEEP)
        if self._sleep != "none":
            # First: engines take for keys and values what the trainer frees here.
            self._freed = await self._trainer.sleep(self._sleep)
        self.enter(State.RESUME)
        await self._engines.resume()
        self.enter(State.GENERATE)

    @contextlib.asynccontextmanager
    async def awake(self, producer: Producer) -> AsyncIterator[None]:
        """Within, the trainer has its models on the devices, for a checkpoint. Engines keep their weights."""
        if self._sleep == "none" or self.state is not State.GENERATE:  # it is awake
            yield
            return
        async with producer.suspended():
            await self.to_trainer(keep_weights=True)
            yield
            await self.to_engines()

    def take_metrics(self) -> dict[str, float]:
        """Seconds in these states since the last call, and the memory freed. Empty if no trainer sleeps."""
        spent, self._seconds = self._seconds, {}
        if self._sleep == "none":
            return {}
        seconds = {f"time/{state}_s": spent.get(state, 0.0) for state in _HANDOVER}
        return {**seconds, "train/asleep_mb": self._freed / 1e6}
