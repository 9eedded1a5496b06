"""`StreamPublisher`: the base of ways that bring weights bucket by bucket."""

import shutil
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from rlcore import EngineClient, Piece, WeightsLocation, checksum, torch_dtype
from rlcore_toolkit.publishers.bucket import aligned, bucket_of, bucketed
from rlcore_toolkit.publishers.file_publisher import FilePublisher
from rlcore_toolkit.publishers.version import on_wire, wire_bytes

BUCKET_BYTES = 256_000_000


@dataclass(frozen=True, kw_only=True)
class StreamPublisher(FilePublisher):
    """Weights bucket by bucket: none of trainer, driver and network ever holds a whole copy of the model.

    `checks`: each tensor's checksum goes along, for engines that tell theirs.
    """

    is_streamed: ClassVar[bool] = True

    bucket_bytes: int = BUCKET_BYTES
    checks: bool = True

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, *, whole: bool = False
    ) -> WeightsLocation:
        """Write nothing, unless `whole`: `pieces` are made when the engines ask for them."""
        if whole:
            return super().write(tensors, version, whole=whole)
        return WeightsLocation(directory=str(self.root / str(version)), version=version, checksums={})

    def pieces(
        self, tensors: Iterable[tuple[str, Tensor]], *, sends: bool, tells: bool
    ) -> Generator[Piece, None, None]:
        dtype = torch_dtype(self.dtype)

        def size(name: str, tensor: Tensor) -> int:
            return wire_bytes(name, tensor, dtype, self.forms)

        runs = bucketed(tensors, size, self.bucket_bytes)
        run = next(runs, None)
        try:
            while run is not None:
                ready = aligned(
                    sent
                    for name, tensor in (run if sends or tells else ())
                    for sent in on_wire(name, tensor, dtype, self.forms)
                )
                content = self._keep(ready) if sends else None
                named = ready if self.checks and tells else ()
                checksums = {name: checksum(tensor) for name, tensor in named}
                bucket = bucket_of(ready)
                # the next run is gathered beside the bucket, and not beside what that was made of
                ready.clear()
                run.clear()
                run = next(runs, None)
                yield Piece(bucket=bucket, content=content, checksums=checksums, is_last=run is None)
        finally:
            self._drop()

    def clean(self) -> None:
        """Remove the folder of buckets, which hosts other than the driver's have too."""
        shutil.rmtree(self.root, ignore_errors=True)

    async def _send(self, client: EngineClient, location: WeightsLocation) -> Mapping[str, str]:
        assert location.pieces is not None, "the driver asks the trainer for them"
        checksums: dict[str, str] = {}
        async for piece in location.pieces:
            await self._take(client, piece, location.version if piece.is_last else None)
            checksums |= piece.checksums
        return checksums

    def _keep(self, tensors: Sequence[tuple[str, Tensor]]) -> Any:
        """In a train worker: keep a bucket for the engines, and return the `Piece.content`."""
        raise NotImplementedError

    def _drop(self) -> None:
        """In a train worker: drop the bucket."""

    async def _take(self, client: EngineClient, piece: Piece, version: int | None) -> None:
        """In the driver: an engine takes up the bucket. `version` is given with the last one."""
        raise NotImplementedError
