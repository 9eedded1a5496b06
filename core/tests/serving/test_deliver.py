"""What the loop does about changes of weights that an engine refuses: the whole version follows, once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rlcore import DeltaError, WeightsLocation
from rlcore.preparation.prepared import Prepared
from rlcore.preparation.run_state import RunState
from rlcore.runtime.loop import Loop
from rlcore.tracking.trackers import Trackers
from rlcore_testing.display import SilentDisplay

VERSION = 4


class Trainer:
    """Writes changes, unless it is asked for the whole."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    async def write_weights(self, version: int, *, whole: bool = False) -> WeightsLocation:
        self.asked.append(whole)
        chain = () if whole else ("changes",)
        return WeightsLocation(directory="3", version=version, checksums={}, chain=chain)


class Engines:
    """Refuse changes (`fit` 0), or everything (-1)."""

    def __init__(self, fit: int) -> None:
        self.fit = fit
        self.taken: list[WeightsLocation] = []

    async def publish(self, location: WeightsLocation, *, keep_cache: bool = False) -> None:
        if self.fit < len(location.chain):
            raise DeltaError("damaged")
        self.taken.append(location)

    async def resume(self) -> None:
        """They gave nothing back."""


class Producer:
    """Notes the publications."""

    def __init__(self) -> None:
        self.versions: list[int] = []

    @asynccontextmanager
    async def publication(self, version: int) -> AsyncIterator[None]:
        self.versions.append(version)
        yield


def publish(prepared: Prepared, **parts: Any) -> None:
    state = RunState(step=VERSION, version=VERSION, producer={}, model={})
    nobody: Any = None
    trackers = Trackers({}, SilentDisplay())
    loop = Loop(prepared=prepared, trackers=trackers, stop=nobody, state=state, **parts)
    asyncio.run(loop.publish())


@pytest.mark.parametrize(("fit", "asked"), [(1, [False]), (0, [False, True])])
def test_a_whole_version_follows_refused_changes(prepared: Prepared, fit: int, asked: list[bool]) -> None:
    trainer, engines, producer = Trainer(), Engines(fit), Producer()
    publish(prepared, trainer=trainer, engines=engines, producer=producer)
    assert trainer.asked == asked
    assert [(one.version, bool(one.chain)) for one in engines.taken] == [(VERSION, fit > 0)]
    assert producer.versions == [VERSION]


def test_a_whole_version_that_is_refused_ends_the_run(prepared: Prepared) -> None:
    trainer = Trainer()
    with pytest.raises(DeltaError, match="damaged"):
        publish(prepared, trainer=trainer, engines=Engines(-1), producer=Producer())
    assert trainer.asked == [False, True]
