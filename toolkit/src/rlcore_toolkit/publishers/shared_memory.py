"""`SharedMemoryPublisher`: a file in memory that the engine's server maps."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rlcore import EngineClient, EngineError, Piece, WeightsLocation
from rlcore_toolkit.publishers.stream import StreamPublisher

Layout = list[tuple[str, str, list[int], int]]
"""The tensors in a file: name, dtype, shape and byte offset of each."""
_BUCKET = "bucket"
"""The file that holds the bucket on its way, in the folder of publications."""
_DTYPE_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F8_E4M3": "float8_e4m3fn"}


@dataclass(frozen=True, kw_only=True)
class SharedMemoryPublisher(StreamPublisher):
    """A file in memory that the server maps, for `local` on the host of a train worker."""

    is_by_host: ClassVar[bool] = True

    def _keep(self, tensors: Sequence[tuple[str, Tensor]]) -> tuple[str, Layout]:
        file = self.root / _BUCKET
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)  # another host has none yet
        file.unlink(missing_ok=True)  # not written over: a server may have it mapped
        try:
            save_file({name: tensor.cpu() for name, tensor in tensors}, file)
        except (OSError, SafetensorError) as error:
            raise EngineError(f"New weights cannot be written to {self.root}: {error}.") from error
        return str(file), tensor_layout(str(file))

    def _drop(self) -> None:
        (self.root / _BUCKET).unlink(missing_ok=True)

    async def _take(self, client: EngineClient, piece: Piece, version: int | None) -> None:
        file, layout = piece.content
        await _load(client, file, layout, version)

    async def _send(self, client: EngineClient, location: WeightsLocation) -> Mapping[str, str]:
        if location.pieces is not None:
            return await super()._send(client, location)
        await _load(client, location.file, tensor_layout(location.file), location.version)  # written whole
        return location.checksums


async def _load(client: EngineClient, file: str, layout: Layout, version: int | None) -> None:
    """Have the server of the file's own host take up its tensors. `version` None: more will follow."""
    body = {"path": file, "layout": layout, "flush_cache": False}
    named = {} if version is None else {"weight_version": str(version)}
    await client.update("/update_weights_from_shared_memory", {**body, **named})


def tensor_layout(file: str) -> Layout:
    """Name, dtype, shape and byte offset (from the start of `file`) of each tensor."""
    with open(file, "rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    header.pop("__metadata__", None)
    return [
        (name, _DTYPE_NAMES[entry["dtype"]], entry["shape"], 8 + size + entry["data_offsets"][0])
        for name, entry in header.items()
    ]
