"""megatron's `torch_dist` checkpoints: weights and optimizer states, readable under another layout.

Written and read with torch.distributed.checkpoint in the calling process, without the helper processes that
megatron's own writer spawns. What is pickled in a checkpoint (`.metadata`, `common.pt`) is read through
allow-lists only, and entries that would be unpickled otherwise are refused.
"""

import copy
import errno
import json
import shutil
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies.common import TorchCommonLoadStrategy
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreLoadPlanner,
    MCoreSavePlanner,
    TorchDistLoadShardedStrategy,
    _replace_sharded_keys_with_state_dict_keys,
    _replace_state_dict_keys_with_sharded_keys,
    _restore_dict_types,
    _unwrap_pyt_sharded_tensor,
    mcore_to_pyt_state_dict,
)
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from rlcore import CheckpointError, disk_sentence
from rlcore_megatron.mcore.checkpoint.unpickle import read_pickle
from rlcore_toolkit import read_tensors, write_tensors, write_together

State = dict[str, Any]
"""Nested dicts of megatron's sharded tensors, and of plain values that are the same on every rank."""

COMMON, DESCRIPTION = "common.pt", "metadata.json"
_FULL_BELOW = 1 << 20
"""Free bytes under which a failed write is taken for a full disk: torch hides the error number."""


@dataclass(frozen=True, kw_only=True)
class StagedState:
    """A state as it was: copies in host memory, so that what it was taken from may change."""

    tensors: Mapping[str, Any]
    common: State


def stage(state: State) -> StagedState:
    """Copy what this rank has to write of `state` to host memory; every rank calls it."""
    sharded, common = save_preprocess(state)
    flat, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded, True)
    for shards in flat.values():
        for shard in shards:
            shard.data = shard.data.detach().to("cpu", copy=True)
    return StagedState(tensors=mcore_to_pyt_state_dict(flat, False), common=copy.deepcopy(common))


def write(folder: Path, staged: StagedState, group: dist.ProcessGroup | None = None) -> None:
    """Write into the existing `folder`; every rank of `group` (None: of all ranks) calls it.

    In a thread beside the training it needs a group of its own. CheckpointError on every rank if any fails.
    """
    writer = _Writer(str(folder), sync_files=True)
    planner = MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
    try:
        with quiet():
            save_tensors(dict(staged.tensors), storage_writer=writer, planner=planner, process_group=group)
    except CheckpointException as error:  # a BaseException: nothing else catches it
        raise CheckpointError(_sentence(folder, _first_failure(error))) from None
    write_together(
        lambda: write_common(folder, staged.common) if dist.get_rank() == 0 else None, folder, group
    )


def load(folder: Path, state: State) -> State:
    """`state` with its sharded tensors read from `folder`, and the plain values that were saved.

    Every rank calls it. CheckpointError where something is missing, damaged, of another shape or not allowed.
    """
    with reading(folder):
        loaded = dist_checkpointing.load(state, str(folder), _Sharded(), _Common())
    assert isinstance(loaded, dict)
    return loaded


def open_reader(folder: Path) -> FileSystemReader:
    """What reads the tensors in `folder`; CheckpointError where it is no checkpoint or not allowed."""
    _check_description(folder)
    return _Reader(folder)


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Makes what torch and megatron raise while they read `folder` a CheckpointError."""
    try:
        with quiet():
            yield
    except CheckpointException as error:  # a BaseException: nothing else catches it
        raise CheckpointError(_unreadable(folder, _first_failure(error))) from None
    except (CheckpointingException, KeyError) as error:
        raise CheckpointError(_unreadable(folder, error)) from None


def load_common(folder: Path) -> State:
    """The plain values that were saved to `folder`, without a collective; CheckpointError as in `load`."""
    _check_description(folder)
    common = read_tensors(folder / COMMON)
    if not isinstance(common, dict):
        raise CheckpointError(f"{folder / COMMON} holds no state.")
    return common


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings that torch gives itself."""
    with warnings.catch_warnings():
        # torch's planners touch a deprecated class of torch's
        warnings.filterwarnings("ignore", message="Please use DTensor", category=FutureWarning)
        # and speak of a process that reads alone
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def write_common(folder: Path, common: State) -> None:
    """Write the plain values, and what says that `folder` is a checkpoint; one rank calls it."""
    write_tensors(folder / COMMON, common)
    description = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    description |= {"common_backend": "torch", "common_backend_version": 1}
    (folder / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")


def _check_description(folder: Path) -> None:
    try:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} is no checkpoint of a model: {error}.") from None
    if not isinstance(description, dict) or description.get("sharded_backend") != "torch_dist":
        raise CheckpointError(f"{folder / DESCRIPTION} does not describe a torch_dist checkpoint.")


def _first_failure(error: CheckpointException) -> BaseException:
    failures = sorted(error.failures.items())
    return failures[0][1][0] if failures else error


def _unreadable(folder: Path, failure: BaseException) -> str:
    # a missing name comes with a list of all names
    text = textwrap.shorten(str(failure) or type(failure).__name__, 200)
    if isinstance(failure, CheckpointingException | KeyError):
        return f"{folder} is no checkpoint of this model: {text}."
    return f"{folder} cannot be read: {text}."


def _sentence(folder: Path, failure: BaseException) -> str:
    if isinstance(failure, OSError):
        return disk_sentence(folder, failure)
    if shutil.disk_usage(folder).free < _FULL_BELOW:
        return disk_sentence(folder, OSError(errno.ENOSPC, "the disk is full"))
    return f"{folder} could not be written: {failure}."


class _Writer(FileSystemWriter):
    def storage_meta(self) -> None:
        """Nothing: the base class would pickle this machine's path."""


class _Common(TorchCommonLoadStrategy):  # type: ignore[misc]  # megatron-core is untyped
    def load_common(self, checkpoint_dir: str | Path) -> State:
        return load_common(Path(checkpoint_dir))


class _Reader(FileSystemReader):
    """Its metadata came through the allow-list, and describes tensors in the folder's own files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        path = folder / ".metadata"
        self._metadata = read_pickle(path)
        if not isinstance(self._metadata, Metadata) or not isinstance(self._metadata.storage_data, dict):
            raise CheckpointError(f"{path} holds no checkpoint metadata.")
        for name, entry in self._metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):  # torch would unpickle it without a check
                raise CheckpointError(f"{path} is refused: {name!r} is a pickle instead of a tensor.")
        for place in self._metadata.storage_data.values():
            if Path(place.relative_path).name != place.relative_path or place.transform_descriptors:
                raise CheckpointError(
                    f"{path} is refused: {place.relative_path!r} is no file of the checkpoint."
                )

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = self._metadata
        assert isinstance(metadata, Metadata)
        return metadata


class _Sharded(TorchDistLoadShardedStrategy):  # type: ignore[misc]  # megatron-core is untyped
    def load(self, sharded_state_dict: State, checkpoint_dir: str | Path) -> State:
        """megatron's own, with our reader and planner."""
        tensors = [value for value in nested_values(sharded_state_dict) if isinstance(value, ShardedTensor)]
        strict = [value for value in tensors if not value.allow_shape_mismatch]
        loose = {value.key: value for value in tensors if value.allow_shape_mismatch}
        flat, mapping, renamed = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict)
        pending = mcore_to_pyt_state_dict(flat, True)
        planner = MCoreLoadPlanner(
            shapes_validation_sharded_tensors=strict, allow_shape_mismatch_sharded_tensors=loose
        )
        load_tensors(pending, storage_reader=_Reader(Path(checkpoint_dir)), planner=planner)
        values = {name: _unwrap_pyt_sharded_tensor(value) for name, value in pending.items()}
        loaded = _replace_sharded_keys_with_state_dict_keys(values, mapping, renamed)
        _restore_dict_types(loaded, sharded_state_dict)
        return dict(loaded)
