"""`DeltaPublisher`: what has changed since the last version, as a file."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from rlcore import (
    EngineClient,
    FilePublisher,
    RefusedError,
    WeightsLocation,
    checksums_of,
    new_version,
    save_weights,
    wire_tensors,
)
from rlcore_toolkit.publishers import delta
from rlcore_toolkit.publishers.delta_mirror import Mirror, keep_versions

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
            made = self._write_whole(root, model_path, values, version)
        else:
            made = self._write_changes(root, last, values, version)
        needed = {*_folders(made), *(_folders(last.location) if last else ())}
        keep_versions(root, needed)
        return made

    def _write_whole(
        self, root: Path, model_path: Path, values: dict[str, Tensor], version: int
    ) -> WeightsLocation:
        with new_version(root, version) as draft:
            save_weights(draft, values, model_path)
        made = WeightsLocation(
            directory=str(root / str(version)), version=version, checksums=checksums_of(values)
        )
        size = sum(value.nbytes for value in values.values())
        tensors = {name: value.clone() for name, value in values.items()}
        self._last = _Last(location=made, tensors=tensors, spare_bytes=size)
        return made

    def _write_changes(
        self, root: Path, last: _Last, values: dict[str, Tensor], version: int
    ) -> WeightsLocation:
        before, sums = last.location, checksums_of(values)
        with new_version(root, version) as draft:
            old = before.version, last.tensors, before.checksums
            delta.write(draft / delta.FILE, base=old, new=(version, values, sums))
        file = root / str(version) / delta.FILE
        made = replace(before, version=version, checksums=sums, chain=(*before.chain, str(file)))
        last.keep(values)
        last.location = made
        last.spare_bytes -= file.stat().st_size
        return made


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
        values = wire_tensors(tensors, self.dtype, self.fp8)
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
