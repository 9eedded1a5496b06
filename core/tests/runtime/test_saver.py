"""Checkpoints written while training goes on: one at a time, complete or absent, failures told."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rlcore.api.errors import CheckpointError
from rlcore.checkpoint.folder import checkpoints
from rlcore.preparation.run_state import RunState
from rlcore.runtime.saver import Saver

LIMIT = 30.0


class Workers:
    """Write a file a role when told to; `open` is how many writes run, `most` the highest it ever was."""

    def __init__(self) -> None:
        self.may_write = asyncio.Event()
        self.staged: list[str] = []
        self.open = self.most = 0
        self.fault: Exception | None = None
        self.saved: list[int] = []

    def told(self, step: int, folder: Path) -> None:
        assert (folder / "complete.json").is_file()
        self.saved.append(step)

    async def stage(self, roles: Sequence[str]) -> None:
        self.staged = list(roles)

    async def write(self, folder: Path) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await asyncio.wait_for(self.may_write.wait(), LIMIT)
            if self.fault is not None:
                raise self.fault
            for role in self.staged:
                (folder / role).write_text("weights")
        finally:
            self.open -= 1


def _state(step: int) -> RunState:
    return RunState(step=step, version=step, producer={}, model={})


def _saver(root: Path, workers: Workers, keep: int = 2) -> Saver:
    metrics = root / "metrics.jsonl"
    return Saver(trainer=workers, root=root, metrics=metrics, roles=["policy"], keep=keep, saved=workers.told)


async def _until(what: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not what():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(poll(), LIMIT)


def _steps(root: Path) -> list[int]:
    return [int(path.name) for path in checkpoints(root)]


async def test_the_caller_goes_on_and_the_end_waits(tmp_path: Path) -> None:
    workers = Workers()
    async with _saver(tmp_path, workers) as saver:
        await saver.save(_state(1))
        await _until(lambda: workers.open == 1)
        saver.check()
        assert _steps(tmp_path) == []
        workers.may_write.set()
    assert (tmp_path / "1" / "policy").read_text() == "weights"
    assert RunState.read(tmp_path / "1").step == 1


async def test_one_write_at_a_time_and_the_newest_are_kept(tmp_path: Path) -> None:
    workers = Workers()
    async with _saver(tmp_path, workers, keep=1) as saver:
        await saver.save(_state(1))
        second = asyncio.create_task(saver.save(_state(2)))
        await _until(lambda: workers.open == 1)
        assert not second.done()
        workers.may_write.set()
        await asyncio.wait_for(second, LIMIT)
        assert _steps(tmp_path) == [1], "the older one stays until the newer one is complete"
    assert workers.most == 1
    assert workers.saved == [1, 2], "each is told once it is complete"
    assert _steps(tmp_path) == [2]


def test_a_failed_write_is_told_and_the_older_checkpoint_stays(tmp_path: Path) -> None:
    async def run() -> None:
        workers = Workers()
        workers.may_write.set()
        async with _saver(tmp_path, workers, keep=1) as saver:
            await saver.save(_state(1))
            await saver.finish()
            workers.fault = OSError(28, "No space left on device")
            await saver.save(_state(2))
            await _until(lambda: workers.open == 0 and not (tmp_path / "2.partial").exists())
            await asyncio.sleep(0)
            assert workers.saved == [1]
            saver.check()

    with pytest.raises(CheckpointError, match="the disk is full"):
        asyncio.run(run())
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_a_run_that_fails_gives_the_write_up(tmp_path: Path) -> None:
    async def run() -> None:
        workers = Workers()
        async with _saver(tmp_path, workers) as saver:
            await saver.save(_state(1))
            await _until(lambda: workers.open == 1)
            raise ValueError("the run has failed")

    with pytest.raises(ValueError, match="the run has failed"):
        asyncio.run(run())
    assert list(tmp_path.iterdir()) == []
