"""A model's checkpoint: each rank writes the parts that it holds, and any number of ranks reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlcore import CheckpointError
from rlcore_fsdp.files import open_tensors
from rlcore_fsdp.shards import local
from rlcore_toolkit import random_states, read_tensors, set_random_states, write_tensors, write_together

FORMAT = 2
STATE = "state.json"


class StagedModel:
    """A model as it was, in host memory: training may go on while it is written."""

    def __init__(
        self,
        state: Mapping[str, Tensor],
        moments: Mapping[str, Tensor],
        steps: int,
        group: dist.ProcessGroup | None,
        files: Callable[[Path], None] | None = None,
    ) -> None:
        """`state`: name → tensor of the model. `moments`: KIND/NAME → as this rank holds it. `files`: writes
        what else belongs there, on one rank.
        """
        rank = dist.get_rank()
        own = {name for name, tensor in state.items() if isinstance(tensor, DTensor) or not rank}
        self._tensors = {f"weight/{name}": _copy(local(state[name])) for name in own}
        self._tensors |= {key: _copy(one) for key, one in moments.items() if key.partition("/")[2] in own}
        self._random, self._group, self._files = random_states(), group, files
        self._state = {"format": FORMAT, "ranks": dist.get_world_size(), "steps": steps}

    def write(self, folder: Path) -> None:
        """Write `folder`, made if needed. CheckpointError on every rank. Collective over the group."""
        write_together(lambda: folder.mkdir(parents=True, exist_ok=True), folder, self._group)
        write_together(lambda: self._write(folder), folder, self._group)

    def _write(self, folder: Path) -> None:
        rank = dist.get_rank()
        try:
            save_file(self._tensors, folder / _name(rank))
        except SafetensorError as error:
            raise OSError(str(error)) from error
        write_tensors(folder / _random(rank), self._random)
        if not rank and self._files is not None:
            self._files(folder)
        if not rank:
            (folder / STATE).write_text(json.dumps(self._state))


class SavedModel:
    """What `StagedModel.write` wrote. CheckpointError where it is missing or damaged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            state = json.loads((folder / STATE).read_text())
            if state["format"] != FORMAT:
                raise CheckpointError(f"{folder} has the format {state['format']}, expected {FORMAT}.")
            self.ranks, self.steps = int(state["ranks"]), int(state["steps"])
            self._files = [open_tensors(folder / _name(rank)) for rank in range(self.ranks)]
            self._names = [set(file.keys()) for file in self._files]
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise self._unreadable(error) from error

    def check(self, shapes: Mapping[str, tuple[int, ...]], has_optimizer: bool) -> None:
        """CheckpointError unless it is of a model with tensors of these names and shapes."""
        found = {
            name.partition("/")[2] for names in self._names for name in names if name.startswith("weight/")
        }
        wrong = found ^ shapes.keys() or {
            n for n, shape in shapes.items() if self.shape(f"weight/{n}") != shape
        }
        if wrong:
            raise CheckpointError(
                f"{self._folder} is no checkpoint of this model: {min(wrong)} does not match."
            )
        if has_optimizer and not any(name.startswith("exp_avg/") for names in self._names for name in names):
            raise CheckpointError(
                f"{self._folder} is of a model without an optimizer: training cannot continue from it."
            )

    def shape(self, name: str) -> tuple[int, ...]:
        """That of a whole tensor."""
        shapes = [tuple(file.get_slice(name).get_shape()) for file in self._holders(name)]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if shapes[0] else ()

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """These rows of a tensor; all of one without dimensions."""
        try:
            files = self._holders(name)
            if not files[0].get_slice(name).get_shape():
                tensor: Tensor = files[0].get_tensor(name)
                return tensor
            parts = [file.get_slice(name) for file in files]
            sizes = [part.get_shape()[0] for part in parts]
            start, stop, _ = rows.indices(sum(sizes))
            found, first = [], 0
            for part, size in zip(parts, sizes, strict=True):
                low, high = max(start - first, 0), min(stop - first, size)
                if low < high:
                    found.append(part[low:high])
                first += size
            return torch.cat(found) if found else parts[0][0:0]
        except (OSError, ValueError, SafetensorError, IndexError) as error:
            raise self._unreadable(error) from error

    def restore_random(self) -> None:
        """The random states of this rank, if there were as many ranks."""
        if self.ranks != dist.get_world_size():
            return
        states = read_tensors(self._folder / _random(dist.get_rank()))
        try:
            set_random_states(states)
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise self._unreadable(error) from error

    def _holders(self, name: str) -> list[Any]:
        return [file for file, names in zip(self._files, self._names, strict=True) if name in names]

    def _unreadable(self, error: Exception) -> CheckpointError:
        return CheckpointError(f"{self._folder} cannot be read: {error}.")


def _name(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def _random(rank: int) -> str:
    return f"random-{rank:05d}.pt"


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
