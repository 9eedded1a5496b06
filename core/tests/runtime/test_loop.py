"""What the loop does after a step: refresh the reference, evaluate, save."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from runs import run_of

from rlcore import PluginError, Rollout
from rlcore.preparation.prepare import prepare
from rlcore.preparation.prepared import Prepared
from rlcore.preparation.run_state import RunState
from rlcore.runtime import loop as loop_module
from rlcore.runtime.loop import Loop
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

    async def refresh(self, role: str) -> None:
        assert self.loop is not None
        assert role == "reference"
        self.refreshed.append(self.loop.state.step)

    async def stage(self, roles: Sequence[str]) -> None:
        assert self.loop is not None
        self.staged.append((self.loop.state.step, tuple(roles)))

    async def write(self, folder: Path) -> None:
        """Nothing is trained, so there is nothing to write."""


class Producer:
    """Rollouts of which a filter has left nothing. `made`: so many, and the next one is never done."""

    samples = False

    def __init__(self, made: int = STEPS, stop: "Stop | None" = None) -> None:
        self._made, self._stop = made, stop
        self.is_closed = False

    async def run(self, step: int, steps: int) -> AsyncIterator[Rollout]:
        metrics = {"time/rollout_s": 0.0, "rollout/response_tokens": 0.0}
        for number in range(step + 1, steps + 1):
            if number > self._made:
                assert self._stop is not None
                self._stop.told_to_end.set()
                try:
                    await asyncio.sleep(LIMIT)
                finally:
                    self.is_closed = True
            yield Rollout(step=number, version=0, groups=(), metrics=metrics)

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        yield

    def state(self) -> dict[str, Any]:
        return {"closed": self.is_closed}


class Stop:
    def __init__(self) -> None:
        self.told_to_end = asyncio.Event()

    @property
    def terminating(self) -> bool:
        return self.told_to_end.is_set()


class Evaluations:
    """`fails`: instead of going on until it is given up."""

    beside = False

    def __init__(self, stop: Stop, *, fails: bool) -> None:
        self._stop, self._fails = stop, fails
        self.given_up = False

    async def now(self, step: int, version: int) -> dict[str, float]:
        if self._fails:
            raise PluginError("The generator 'broken' failed.")
        self._stop.told_to_end.set()
        try:
            await asyncio.sleep(LIMIT)
        except asyncio.CancelledError:
            self.given_up = True
            raise
        return {}

    async def late(self, *, wait: bool) -> dict[str, float]:
        return {}

    async def stop(self) -> None:
        """None goes on."""


class Rows(Trackers):
    """Keeps the steps that have a row."""

    def __init__(self) -> None:
        super().__init__({}, SilentDisplay())
        self.steps: list[Any] = []

    def metrics(self, row: Mapping[str, Any]) -> None:
        self.steps.append(row["step"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


def _prepared(every: int, folder: Path, **more: str) -> Prepared:
    flags = {"kl_coef": "0.1", "reference.refresh_every": str(every), "steps": str(STEPS), "save_every": "3"}
    return prepare(run_of("grpo", {**flags, **more}), folder / "-".join([f"every-{every}", *more]), None)


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


@pytest.mark.parametrize("fails", [True, False])
async def test_what_was_trained_is_not_lost_with_its_evaluation(folder: Path, fails: bool) -> None:
    """It fails, or SIGTERM comes while it goes on: the step's row and its checkpoint are written."""
    prepared = _prepared(0, folder, eval_first="false", eval_every="2", save_every="0")
    trainer, rows, stop = Trainer(), Rows(), Stop()
    evaluations = Evaluations(stop, fails=fails)
    parts: Any = {"producer": Producer(), "trackers": rows, "stop": stop, "evaluations": evaluations}
    state = RunState(step=0, version=0, producer={}, model={})
    loop: Any = Loop(prepared=prepared, trainer=trainer, engines=None, state=state, **parts)  # type: ignore[arg-type]  # stand-ins
    trainer.loop = loop
    loop.publish = lambda: asyncio.sleep(0)
    try:
        reason = await asyncio.wait_for(loop.run(), LIMIT)
    except PluginError as error:
        reason = str(error)
    assert reason == ("The generator 'broken' failed." if fails else "sigterm")
    assert rows.steps[-1] == 2
    assert trainer.staged == [(2, ("policy",))]
    assert evaluations.given_up is not fails


@pytest.mark.parametrize(
    ("made", "reason", "saved", "waits"),
    [(0, "terminated", [], True), (3, "sigterm", [3], False), (4, "sigterm", [3, 4], True)],
    ids=["nothing yet", "all is saved", "a step since then"],
)
async def test_a_run_told_to_end_does_not_wait_for_ever(
    folder: Path, made: int, reason: str, saved: list[int], waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollout at hand never comes. It is waited for a little, but for right after a checkpoint."""
    monkeypatch.setattr(loop_module, "GRACE_S", 0.3)
    trainer, stop = Trainer(), Stop()
    state = RunState(step=0, version=0, producer={}, model={})
    trackers = Trackers({}, SilentDisplay())
    parts: Any = {"producer": Producer(made, stop), "trackers": trackers, "stop": stop}
    loop: Any = Loop(prepared=_prepared(0, folder), trainer=trainer, engines=None, state=state, **parts)  # type: ignore[arg-type]  # stand-ins
    trainer.loop = loop
    begin = time.monotonic()
    assert await asyncio.wait_for(loop.run(), LIMIT) == reason
    seconds = time.monotonic() - begin
    assert [step for step, _ in trainer.staged] == saved
    assert (seconds > 0.3) is waits
    assert trainer.loop is not None
    is_closed = trainer.loop.state.producer.get("closed", False)
    assert is_closed is (saved == [3, 4]), "else what is under way would be lost"
