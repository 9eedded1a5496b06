"""`DeltaPublisher`: what has changed since the last version, as a file."""

import asyncio
import logging
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from rlcore import EngineClient, RefusedError, WeightsLocation
from rlcore_toolkit.publishers import delta
from rlcore_toolkit.publishers.file_publisher import FilePublisher
from rlcore_toolkit.publishers.version import FILE, checksums_of, new_version, save_weights, wire_tensors


def keep_versions(root: Path, needed: Collection[Path]) -> None:
    """Remove the folders of all other versions in `root`."""
    for path in list(root.iterdir()):
        if path.name.isdecimal() and path not in needed:
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
        version, tensors = source.name, load_file(source / FILE)
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


DELTA_COPIES = 6
"""Whole versions that the folder has room for: two with their changes, and two of the mirror."""
MOST_CHANGES = 64
"""Then a whole version is written: a new engine has to load all changes since the last one."""
_MIRROR = "mirror"
_PATH = "/update_weights_from_delta"
_REFUSED = 400
_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Last:
    """The version that was written last. `spare_bytes`: how many bytes of changes may still follow it."""

    location: WeightsLocation
    tensors: dict[str, Tensor]
    spare_bytes: int

    def can_precede(self, version: int) -> bool:
        """Whether reading all changes then costs less than reading a new whole version."""
        has_room = self.spare_bytes > 0 and len(self.location.chain) < MOST_CHANGES
        return has_room and version != self.location.version

    def keep(self, values: dict[str, Tensor]) -> None:
        """Copy `values`, which may be the parameters themselves."""
        for name, value in values.items():
            self.tensors[name].copy_(value)


@dataclass(kw_only=True)
class Chain:
    """The train worker's side: keeps the last version in memory, and writes what has changed since."""

    _last: _Last | None = None

    def write(
        self, root: Path, model_path: Path, values: dict[str, Tensor], version: int, *, whole: bool
    ) -> WeightsLocation:
        """Writes `root/<version>/`, and removes what neither it nor the version before needs."""
        last = self._last
        if last is None or whole or not last.can_precede(version):
            location = self._write_whole(root, model_path, values, version)
        else:
            location = self._write_changes(root, last, values, version)
        needed = {*_folders(location), *(_folders(last.location) if last else ())}
        keep_versions(root, needed)
        return location

    def _write_whole(
        self, root: Path, model_path: Path, values: dict[str, Tensor], version: int
    ) -> WeightsLocation:
        with new_version(root, version) as draft:
            save_weights(draft, values, model_path)
        location = WeightsLocation(
            directory=str(root / str(version)), version=version, checksums=checksums_of(values)
        )
        size = sum(value.nbytes for value in values.values())
        tensors = {name: value.clone() for name, value in values.items()}
        self._last = _Last(location=location, tensors=tensors, spare_bytes=size)
        return location

    def _write_changes(
        self, root: Path, last: _Last, values: dict[str, Tensor], version: int
    ) -> WeightsLocation:
        before, sums = last.location, checksums_of(values)
        with new_version(root, version) as draft:
            old = before.version, last.tensors, before.checksums
            delta.write(draft / delta.FILE, base=old, new=(version, values, sums))
        file = root / str(version) / delta.FILE
        location = replace(before, version=version, checksums=sums, chain=(*before.chain, str(file)))
        last.keep(values)
        last.location = location
        last.spare_bytes -= file.stat().st_size
        return location


@dataclass(frozen=True, kw_only=True)
class DeltaPublisher(FilePublisher):
    """For engines on the host that sees `root`: a whole version, then the changes from each to the next.

    `local` applies the changes to the weights that it holds. For other engines, a mirror applies them to the
    directory that the engine loads. An engine that is new, or refuses changes, gets a whole version.
    DeltaError if the changes cannot make one.
    """

    model_path: Path
    chain: Chain = field(default_factory=Chain)
    mirror: Mirror = field(default_factory=Mirror)

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, *, whole: bool = False
    ) -> WeightsLocation:
        values = wire_tensors(tensors, self.dtype, self.forms)
        return self.chain.write(self.root, self.model_path, values, version, whole=whole)

    async def directory(self, location: WeightsLocation) -> str:
        return await self.mirror.directory(self.root / _MIRROR, location)

    async def _send(self, client: EngineClient, location: WeightsLocation) -> Mapping[str, str]:
        if location.chain and (await client.capabilities()).deltas:
            try:
                changes = {"path": location.chain[-1], "weight_version": str(location.version)}
                await client.update(_PATH, {**changes, "flush_cache": False})
                return location.checksums
            except RefusedError as error:
                if error.status != _REFUSED:
                    raise
                _log.warning("%s Version %d is loaded whole instead.", error, location.version)
        await client.update_from_disk(await self.directory(location), location.version, flush=False)
        return location.checksums


def _folders(location: WeightsLocation) -> set[Path]:
    return {Path(location.directory), *(Path(file).parent for file in location.chain)}
