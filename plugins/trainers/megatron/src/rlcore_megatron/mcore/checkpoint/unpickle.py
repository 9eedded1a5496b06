"""Read pickles that may come from anywhere: only allowed classes are built, and no code in them runs."""

import io
import pickle
from collections.abc import Collection
from enum import Enum, EnumType
from pathlib import Path
from typing import Any

from rlcore import CheckpointError

_RECORDS = (
    *("ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties"),
    *("TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
)
METADATA_GLOBALS = frozenset(
    {
        ("torch", "Size"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
    }
    | {("torch.distributed.checkpoint.metadata", name) for name in _RECORDS}
    | {("torch", name) for name in ("bfloat16", "bool", "float16", "float32", "float64")}
    | {("torch", name) for name in ("int8", "int16", "int32", "int64", "uint8", "strided")}
)
"""The classes in the `.metadata` of a torch distributed checkpoint: plain records, sizes and dtypes."""


class _AllowListed(pickle.Unpickler):
    def __init__(self, stream: io.BufferedIOBase, allowed: Collection[tuple[str, str]]) -> None:
        super().__init__(stream)
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # as Python 3.11.0 to 3.11.3 write a member of an enum
            return _member
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return super().find_class(module, name)


def _member(of: object, name: str) -> Enum:
    """The member `name` of the enum `of`."""
    if isinstance(of, EnumType) and name in of.__members__:
        found: Enum = of[name]
        return found
    raise pickle.UnpicklingError(f"getattr of {name} is not allowed")


def read_pickle(path: Path, allowed: Collection[tuple[str, str]] = METADATA_GLOBALS) -> Any:
    """The object in `path`, built only from the `allowed` (module, name) pairs and plain containers.

    CheckpointError where the file is missing, damaged or names anything else. No code in it has run then.
    """
    try:
        with path.open("rb") as stream:
            return _AllowListed(stream, allowed).load()
    except FileNotFoundError:
        raise CheckpointError(f"The checkpoint file {path} does not exist.") from None
    except Exception as error:  # a damaged pickle raises nearly any exception
        raise CheckpointError(f"The checkpoint file {path} is refused: {error}.") from error
