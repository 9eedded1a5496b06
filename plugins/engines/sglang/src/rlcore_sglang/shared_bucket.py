"""One bucket of weights in memory that servers on the same device open: CUDA IPC, or shared CPU memory."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from rlcore import EngineError
from rlcore_sglang.bucket import Call, RebuildCudaTensor

DEVICE_PLACE = 6
"""The place of the device among the arguments of torch's `rebuild_cuda_tensor`."""
SHARED_MEMORY = Path("/dev/shm")


class SharedBucket:
    """Holds one bucket at a time, in the same memory for a whole publication.

    torch frees memory of a GPU only once each handle to it has been opened and closed. A server that dies
    does neither. As all buckets use the same memory, it costs one bucket, and not the whole model.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self._file: Path | None = None

    def fill(self, tensors: Sequence[Tensor]) -> Tensor:
        """The bytes of `tensors` (all on one device), uint8 [n]. They replace those of the bucket before."""
        parts = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
        size = sum(len(part) for part in parts)
        if self._memory is None or len(self._memory) < size:
            self.free()
            self._memory = torch.empty(size, dtype=torch.uint8, device=parts[0].device)
        flat = self._memory[:size]
        torch.cat(parts, out=flat)
        return flat

    def handle(self, flat: Tensor, readers: int) -> Call:
        """By which each of `readers` processes opens `flat` once, before the next `fill`."""
        if flat.is_cuda:
            assert readers == 1, "a GPU has one rank of an engine"
            return _cuda_handle(flat)
        return self._file_handle(flat, readers)

    def free(self) -> None:
        """Give the memory back: nobody reads it any more."""
        was_cuda = self._memory is not None and self._memory.is_cuda
        self._memory = None
        if self._file is not None:
            with contextlib.suppress(FileNotFoundError):
                self._file.unlink()
            self._file = None
        if was_cuda:
            torch.cuda.ipc_collect()

    def _file_handle(self, flat: Tensor, readers: int) -> Call:
        """A file in `/dev/shm`, in which torch counts who has it open; each reader takes one off.

        The count starts one too high, so that torch never removes the file: `free` does.
        """
        storage = flat.untyped_storage()
        try:
            manager, name, size = storage._share_filename_cpu_()
        except RuntimeError as error:
            raise EngineError(f"New weights cannot be put into {SHARED_MEMORY}: {error}") from error
        if self._file is None:
            self._file = SHARED_MEMORY / os.fsdecode(name).lstrip("/")
            storage._shared_incref()
        for _ in range(readers):
            storage._shared_incref()
        opened = Call(reductions.rebuild_storage_filename, (torch.UntypedStorage, manager, name, size))
        typed = Call(reductions.rebuild_typed_storage, (opened, flat.dtype))
        return Call(reductions.rebuild_tensor, (Tensor, typed, (0, flat.shape, flat.stride(), False)))


def _cuda_handle(flat: Tensor) -> Call:
    """By CUDA IPC. The reader finds the device by its UUID: it may number the devices in another way."""
    torch.cuda.current_stream(flat.device).synchronize()
    _, arguments = reductions.reduce_tensor(flat)
    uuid = str(torch.cuda.get_device_properties(flat.device).uuid)
    return Call(RebuildCudaTensor, (*arguments[:DEVICE_PLACE], uuid, *arguments[DEVICE_PLACE + 1 :]))
