"""When the loop refreshes the reference: after the steps that are multiples, once each, and never else."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from runs import run_of

from rlcore.api.producer import Rollout
from rlcore.runtime.loop import Loop
from rlcore.runtime.prepare import prepare
from rlcore.runtime.prepared import Prepared
from rlcore.runtime.state import RunState
from rlcore.tracking.trackers import Trackers
from rlcore_testing.display import SilentDisplay

STEPS = 7
LIMIT = 60.0


class Trainer:
    """Notes at which step of the loop it is asked to refresh."""

    data_parallel = 1

    def __init__(self) -> None:
        self.loop: Loop | None = None
        self.refreshed: list[int] = []
        self.staged: list[tuple[int, Sequence[str]]] = []

    async def refresh_reference(self) -> None:
        assert self.loop is not None
        self.refreshed.append(self.loop.state.step)

    async def stage(self, roles: Sequence[str]) -> None:
        assert self.loop is not None
        self.staged.append((self.loop.state.step, tuple(roles)))

    async def write(self, folder: Path) -> None:
        """Nothing is trained, so there is nothing to write."""


class Producer:
    """Rollouts of which a filter has left nothing."""

    samples = False

    async def run(self, step: int, steps: int) -> AsyncIterator[Rollout]:
        metrics = {"time/rollout_s": 0.0, "rollout/response_tokens": 0.0}
        for number in range(step + 1, steps + 1):
            yield Rollout(step=number, version=0, groups=(), metrics=metrics)

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        yield

    def state(self) -> dict[str, Any]:
        return {}


class Stop:
    terminating = False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


def _prepared(every: int, folder: Path) -> Prepared:
    flags = {"kl_coef": "0.1", "reference_refresh_every": str(every), "steps": str(STEPS), "save_every": "3"}
    return prepare(run_of("grpo", flags), folder / f"every-{every}", None)


@pytest.mark.parametrize(("every", "steps"), [(0, []), (1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6])])
def test_the_steps_of_a_refresh(folder: Path, every: int, steps: list[int]) -> None:
    """A resumed run keeps the cadence, for it counts the steps of the whole run."""
    prepared = _prepared(every, folder)
    for begin in (0, 4):
        trainer, parts = (
            Trainer(),
            {
                "producer": Producer(),
                "trackers": Trackers({}, SilentDisplay()),
                "stop": Stop(),
            },
        )
        state = RunState(step=begin, version=begin, producer={}, model={})
        loop: Any = Loop(prepared=prepared, trainer=trainer, engines=None, state=state, **parts)  # type: ignore[arg-type]  # stand-ins
        trainer.loop = loop
        assert asyncio.run(asyncio.wait_for(loop.run(), LIMIT)) == "completed"
        assert trainer.refreshed == [step for step in steps if step > begin]
        saved = ("policy", "reference") if every else ("policy",)
        assert trainer.staged == [(step, saved) for step in (3, 6, 7) if step > begin]
