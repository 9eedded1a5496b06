"""`Mirror`: a whole model directory, on the engines' host, that follows a chain of changes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from rlcore import WeightsLocation, new_version, save_weights
from rlcore_toolkit.publishers import delta

_FILE = "model.safetensors"


def keep_versions(root: Path, kept: Collection[Path]) -> None:
    """Remove the folders of all other versions in `root`."""
    for path in list(root.iterdir()):
        if path.name.isdecimal() and path not in kept:
            shutil.rmtree(path)


@dataclass(kw_only=True)
class Mirror:
    """Makes directories for engines that load nothing but whole models. For one event loop.

    It makes each version from the one before. If that is missing, it starts from the last whole version and
    applies all changes since.
    """

    _at: tuple[int, Path] | None = None
    _making: asyncio.Task[None] | None = None

    async def directory(self, root: Path, location: WeightsLocation) -> str:
        """A directory with the whole model of `location`, in `root`; the one before it stays.

        DeltaError if a change is damaged.
        """
        if not location.chain:
            return location.directory
        # Engines ask at the same time, and share what is made; one that dies leaves it to the others.
        while self._at is None or self._at[0] != location.version:
            if self._making is None:
                self._making = asyncio.create_task(self._make(root, location))
                self._making.add_done_callback(self._made)
            await asyncio.shield(self._making)
        return str(self._at[1])

    async def _make(self, root: Path, location: WeightsLocation) -> None:
        self._at = location.version, await asyncio.to_thread(self._write, root, location)

    def _made(self, _: asyncio.Task[None]) -> None:
        self._making = None

    def _write(self, root: Path, location: WeightsLocation) -> Path:
        source, files = self._start(location)
        version, tensors = source.name, load_file(source / _FILE)
        for file in files:
            tensors |= dict(delta.apply_delta(file, tensors, version))
            version = str(delta.read_changes(file).version)
        with new_version(root, location.version) as draft:
            save_weights(draft, tensors, Path(location.directory))
        target = root / str(location.version)
        keep_versions(root, (source, target))
        return target

    def _start(self, location: WeightsLocation) -> tuple[Path, list[Path]]:
        """The directory to begin with, and the changes from there on."""
        files = [Path(file) for file in location.chain]
        if self._at is not None and self._at[0] == delta.read_changes(files[-1]).base:
            return self._at[1], files[-1:]
        return Path(location.directory), files
