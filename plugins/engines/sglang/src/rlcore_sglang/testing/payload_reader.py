"""A process that reads payloads of weights as SGLang does, by the names that it allows; without sglang."""

import base64
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing import reductions

from rlcore import checksum
from rlcore_sglang.bucket import SGLANG_CLASS, SGLANG_REBUILD, FlattenedTensorMetadata
from rlcore_sglang.shared_bucket import DEVICE_PLACE

ALLOWED = {
    ("torch", "Size"),
    ("torch", "Tensor"),
    ("torch", "uint8"),
    ("torch", "float32"),
    ("torch", "bfloat16"),
    ("torch.storage", "TypedStorage"),
    ("torch.storage", "UntypedStorage"),
    ("torch.multiprocessing.reductions", "rebuild_tensor"),
    ("torch.multiprocessing.reductions", "rebuild_typed_storage"),
    ("torch.multiprocessing.reductions", "rebuild_storage_filename"),
}
"""Names that SGLang 0.5.23 allows, and that a payload by handle needs beside SGLang's own."""


def rebuild_cuda_tensor(*arguments: Any) -> torch.Tensor:
    """SGLang's `_rebuild_cuda_tensor_modified`: the device is given by its UUID."""
    uuids = [
        str(torch.cuda.get_device_properties(number).uuid) for number in range(torch.cuda.device_count())
    ]
    device = uuids.index(arguments[DEVICE_PLACE])
    rebuild: Callable[..., torch.Tensor] = reductions.rebuild_cuda_tensor
    return rebuild(*arguments[:DEVICE_PLACE], device, *arguments[DEVICE_PLACE + 1 :])


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        own = {SGLANG_CLASS: FlattenedTensorMetadata, SGLANG_REBUILD: rebuild_cuda_tensor}
        if (module, name) in own:
            return own[module, name]
        assert (module, name) in ALLOWED, f"{module}.{name} is not allowed"
        return super().find_class(module, name)


def read(payload: bytes) -> tuple[dict[str, str], torch.Tensor]:
    """Name → checksum of the tensors, and their bytes, which are still the trainer's memory."""
    bucket = _Reader(io.BytesIO(payload)).load()
    flat: torch.Tensor = bucket["flattened_tensor"]
    tensors = {
        meta.name: flat[meta.start_idx : meta.end_idx].view(meta.dtype).reshape(meta.shape)
        for meta in bucket["metadata"]
    }
    return {name: checksum(tensor.cpu()) for name, tensor in tensors.items()}, flat


class PayloadReader:
    """Such a process."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def take(self, payload: bytes, *, keeps: bool = False) -> dict[str, str]:
        """Name → checksum of a bucket's tensors. `keeps`: with the memory still open."""
        assert self._process.stdin is not None, "it is a pipe"
        assert self._process.stdout is not None, "it is a pipe"
        self._process.stdin.write(f"{'keep ' * keeps}{base64.b64encode(payload).decode()}\n")
        self._process.stdin.flush()
        checksums: dict[str, str] = json.loads(self._process.stdout.readline())
        return checksums

    def kill(self) -> None:
        """End it at once, whatever it has open. May be called again."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Answer a line of JSON for each payload on stdin, in base64. What comes after `keep` stays open."""
    kept = []
    for line in sys.stdin:
        checksums, flat = read(base64.b64decode(line.removeprefix("keep ")))
        if line.startswith("keep "):
            kept.append(flat)
        del flat
        print(json.dumps(checksums), flush=True)


if __name__ == "__main__":
    main()
