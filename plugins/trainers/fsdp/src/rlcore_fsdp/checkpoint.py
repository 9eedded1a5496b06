"""A model's checkpoint: each rank writes the parts that it holds, and any number of ranks reads them."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rlcore import CheckpointError
from rlcore_toolkit import (
    SafetensorsFiles,
    random_states,
    read_tensors,
    set_random_states,
    write_tensors,
    write_together,
)

FORMAT = 2
STATE, TENSORS, RANDOM = "state.json", "rank-{:05d}.safetensors", "random-{:05d}.pt"
_DAMAGE = (OSError, SafetensorError, LookupError, ValueError, TypeError, AttributeError, RuntimeError)


class StagedModel:
    """A model as it was, in host memory: training may go on while it is written."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        steps: int,
        group: dist.ProcessGroup | None,
        files: Callable[[Path], None] | None = None,
    ) -> None:
        """`tensors`: KIND/NAME → what this rank writes of it. `files`: writes what else belongs there, on one
        rank.
        """
        self._tensors = {key: one.detach().to("cpu", copy=True).contiguous() for key, one in tensors.items()}
        self._random, self._group, self._files = random_states(), group, files
        self._state = {"format": FORMAT, "ranks": dist.get_world_size(), "steps": steps}

    def write(self, folder: Path) -> None:
        """Write `folder`, made if needed. CheckpointError on every rank. Collective over the group."""
        write_together(lambda: folder.mkdir(parents=True, exist_ok=True), folder, self._group)
        write_together(lambda: self._write(folder), folder, self._group)

    def _write(self, folder: Path) -> None:
        rank = dist.get_rank()
        try:
            save_file(self._tensors, folder / TENSORS.format(rank))
        except SafetensorError as error:
            raise OSError(str(error)) from error
        write_tensors(folder / RANDOM.format(rank), self._random)
        if not rank and self._files is not None:
            self._files(folder)
        if not rank:
            (folder / STATE).write_text(json.dumps(self._state))


class SavedModel:
    """What `StagedModel.write` wrote. CheckpointError where it is missing or damaged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with self._reading():
            state = json.loads((folder / STATE).read_text())
            found, self.ranks, self.steps = (int(state[name]) for name in ("format", "ranks", "steps"))
        if found != FORMAT:
            raise CheckpointError(f"{folder} has the format {found}, expected {FORMAT}.")
        with self._reading():
            self._files = SafetensorsFiles.joined(folder / TENSORS.format(rank) for rank in range(self.ranks))

    def check(self, shapes: Mapping[str, tuple[int, ...]], has_optimizer: bool) -> None:
        """CheckpointError unless it is of a model with tensors of these names and shapes."""
        names = self._files.names
        found = {name: self._files.shape(name) for name in names if name.startswith("weight/")}
        if wrong := found.items() ^ {f"weight/{name}": shape for name, shape in shapes.items()}.items():
            name = min(wrong)[0].removeprefix("weight/")
            raise CheckpointError(f"{self._folder} is no checkpoint of this model: {name} does not match.")
        if has_optimizer and len(names) == len(found):
            raise CheckpointError(
                f"{self._folder} is of a model without an optimizer: training cannot continue from it."
            )

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """These rows of a tensor; all of one without dimensions."""
        with self._reading():
            return self._files.read(name, rows)

    def restore_random(self) -> None:
        """The random states of this rank, if there were as many ranks."""
        if self.ranks == dist.get_world_size():
            states = read_tensors(self._folder / RANDOM.format(dist.get_rank()))
            with self._reading():
                set_random_states(states)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            raise CheckpointError(f"{self._folder} cannot be read: {error}.") from error
