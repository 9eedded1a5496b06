"""Files of `torch.save` that may come from anywhere: no code in them runs."""

import io
from pathlib import Path
from typing import Any

import torch

from rlcore import CheckpointError, first_line


def write_tensors(path: Path, value: Any) -> None:
    """`torch.save` in memory, then one write: an OSError keeps its error number."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    path.write_bytes(buffer.getbuffer())


def read_tensors(path: Path) -> Any:
    """What `torch.save` wrote to `path`: tensors, numbers, strings and plain containers.

    Else a CheckpointError.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"The checkpoint file {path} does not exist.") from None
    except Exception as error:  # a damaged file raises nearly any exception
        raise CheckpointError(f"The checkpoint file {path} is refused: {first_line(error)}.") from error
