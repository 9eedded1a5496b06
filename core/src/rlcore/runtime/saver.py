"""`Saver`: checkpoints that are written while training goes on, at most one at a time."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rlcore.checkpoint.folder import prune, write_atomically
from rlcore.preparation.run_state import RunState


class SavesModels(Protocol):
    """The train workers, as a saver uses them."""

    async def stage(self, roles: Sequence[str]) -> None:
        """Copy the state of `roles`, so that training may go on."""

    async def write(self, folder: Path) -> None:
        """Write what was staged last."""


@dataclass(kw_only=True)
class Saver:
    """A context: its orderly end waits for the last write, any other end gives it up.

    `root`: holds the checkpoints as `root/STEP`. `metrics`: the run's file of metrics; a checkpoint keeps a
    copy of its rows so far. `keep`: how many of the newest stay; an older one goes only
    once a newer one is complete. `saved`: called with step and folder of each complete checkpoint.
    """

    trainer: SavesModels
    root: Path
    metrics: Path
    roles: Sequence[str]
    keep: int
    saved: Callable[[int, Path], None]
    _writing: asyncio.Task[None] | None = field(default=None, init=False)

    async def save(self, state: RunState) -> None:
        """Begin the checkpoint of `state.step`, once the one before is complete; raises its error."""
        await self.finish()
        await self.trainer.stage(self.roles)
        rows = self.metrics.read_bytes() if self.metrics.exists() else b""
        self._writing = asyncio.create_task(self._write(state, rows))

    def check(self) -> None:
        """Raise the error of a write that has failed."""
        if self._writing is not None and self._writing.done():
            self._writing.result()

    async def finish(self) -> None:
        """Wait for the write under way, if there is one; raises its error."""
        if self._writing is not None:
            await self._writing
            self._writing = None

    async def __aenter__(self) -> "Saver":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            await self.finish()
        elif self._writing is not None:
            self._writing.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):  # the run ends by another error
                await self._writing

    async def _write(self, state: RunState, rows: bytes) -> None:
        folder = self.root / str(state.step)
        with contextlib.ExitStack() as stack:
            draft = stack.enter_context(write_atomically(folder))
            await self.trainer.write(draft)
            state.write(draft)
            (draft / self.metrics.name).write_bytes(rows)
            await asyncio.to_thread(stack.close)  # reads all files again, for their checksums
        # Only now: an old checkpoint must outlive the time in which the new one may still fail.
        prune(self.root, self.keep, step=state.step)
        self.saved(state.step, folder)
