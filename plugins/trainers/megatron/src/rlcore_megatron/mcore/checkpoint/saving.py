"""A role's checkpoint: weights and optimizer as `torch_dist`, the schedule's position, and random states."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.utils import unwrap_model

from rlcore import CheckpointError
from rlcore_megatron.mcore.checkpoint import torch_dist
from rlcore_megatron.mcore.checkpoint.adapter import StagedAdapter, sharded_adapter
from rlcore_megatron.mcore.layers.adapter import AdapterSet
from rlcore_megatron.mcore.rng import random_states, set_random_states
from rlcore_toolkit import read_tensors, write_tensors, write_together


@dataclass(frozen=True, kw_only=True)
class StagedRole:
    """A role as it was when it was staged, in host memory: training may go on while it is written."""

    state: torch_dist.StagedState
    random: Mapping[str, Any]
    group: dist.ProcessGroup | None
    adapter: StagedAdapter | None = None

    def write(self, folder: Path) -> None:
        """Write `folder`, made if needed. Collective over `group`; CheckpointError on every rank."""
        group = self.group
        write_together(lambda: folder.mkdir(parents=True, exist_ok=True), folder, group)
        torch_dist.write(folder, self.state, group)
        random = _random_file(folder)
        write_together(lambda: write_tensors(random, self.random), folder, group)
        if self.adapter is not None:
            write = self.adapter.write if dist.get_rank() == 0 else _nothing
            write_together(lambda: write(folder), folder, group)


def stage_role(
    chunks: Sequence[torch.nn.Module],
    optimizer: Any,
    steps: int,
    group: dist.ProcessGroup | None,
    adapters: AdapterSet | None = None,
    adapter: StagedAdapter | None = None,
) -> StagedRole:
    """Copy a role's state; `optimizer` None for a frozen model; `group`: that will write it. Collective.

    `adapters`: all that is trained, and saved; `adapter`: these, whole.
    """
    state = _state(chunks, optimizer, adapters, is_loading=False)
    plain = {"steps": steps, "layout": _layout(), "distributed_optimizer": _is_distributed(optimizer)}
    staged = torch_dist.stage({**state, **plain})
    return StagedRole(state=staged, random=random_states(), group=group, adapter=adapter)


def load_role(
    folder: Path, chunks: Sequence[torch.nn.Module], optimizer: Any, adapters: AdapterSet | None = None
) -> int:
    """Read `folder` into `chunks` and `optimizer`; returns the steps taken. Collective; CheckpointError.

    A frozen model, without an optimizer, leaves the random states of the process alone.
    """
    saved = torch_dist.load_common(folder).get("distributed_optimizer")
    if optimizer is not None and saved != _is_distributed(optimizer):
        raise CheckpointError(
            f"{folder} was saved with --megatron.use-distributed-optimizer {str(saved).lower()}, "
            f"which cannot be read with {str(_is_distributed(optimizer)).lower()}."
            if saved is not None
            else f"{folder} is of a model without an optimizer: training cannot continue from it."
        )
    state = _state(chunks, optimizer, adapters, is_loading=True)
    names = {name: set(state[name]) for name in _names(chunks)}
    loaded = torch_dist.load(folder, state)
    _fill(folder, chunks, loaded, None if adapters is None else names)
    if optimizer is not None:
        with torch.no_grad():
            optimizer.load_state_dict(_with_empty_parts(loaded["optimizer"]))
    if optimizer is not None and loaded.get("layout") == _layout():
        set_random_states(read_tensors(_random_file(folder)))
    return int(loaded["steps"])


def load_weights(folder: Path, chunks: Sequence[torch.nn.Module]) -> None:
    """The weights alone of `folder` into `chunks`. Collective; CheckpointError as above."""
    _fill(folder, chunks, torch_dist.load(folder, _state(chunks, None, is_loading=True)))


def sharded_tensors(chunk: torch.nn.Module) -> dict[str, Any]:
    """State-dict name → where it lies in a checkpoint, of every parameter and saved buffer of `chunk`."""
    [state] = _state([chunk], None, is_loading=True).values()
    return dict(state)


def _fill(
    folder: Path,
    chunks: Sequence[torch.nn.Module],
    loaded: Mapping[str, Any],
    parts: Mapping[str, Collection[str]] | None = None,
) -> None:
    """`parts`: of each chunk, the names that are loaded; None: all."""
    for name, chunk in zip(_names(chunks), _plain(chunks), strict=True):
        # one without an adapter has nothing there
        missing, unexpected = chunk.load_state_dict(loaded.get(name, {}), strict=False)
        absent = missing if parts is None else [key for key in missing if key in parts[name]]
        wrong = [key for key in [*absent, *unexpected] if not key.endswith("_extra_state")]
        if wrong:
            raise CheckpointError(f"{folder} is no checkpoint of this model: {wrong[0]} does not match.")


def _with_empty_parts(optimizer: Any) -> Any:
    """`optimizer`, as loaded, with the states of parts that have no parameters on this rank.

    One on a stage without experts has none of theirs, which only a checkpoint of the same kind says.
    """
    for part in optimizer.values() if 0 in optimizer else (optimizer,):
        part.setdefault("fp32_from_fp16_params", [])
        part.get("optimizer", part).setdefault("state", {})
    return optimizer


def _is_distributed(optimizer: Any) -> bool | None:
    return None if optimizer is None else bool(optimizer.config.use_distributed_optimizer)


def _nothing(folder: Path) -> None:
    """What the other ranks write of an adapter."""


def _state(
    chunks: Sequence[torch.nn.Module],
    optimizer: Any,
    adapters: AdapterSet | None = None,
    *,
    is_loading: bool,
) -> dict[str, Any]:
    # fully_reshardable: the only optimizer format that can be read under any other layout
    metadata = {
        "distrib_optim_sharding_type": "fully_reshardable",
        "chained_optim_avoid_prefix": True,
        "singleton_local_shards": False,
        "dp_cp_group": mpu.get_data_parallel_group(with_context_parallel=True),
    }
    state: dict[str, Any] = {}
    for name, chunk in zip(_names(chunks), _plain(chunks), strict=True):
        if adapters is not None:
            state[name] = sharded_adapter(chunk, adapters)
            continue
        tensors = chunk.sharded_state_dict(metadata=metadata)
        # the extra states are fp8 scales, empty here, and would be pickled
        state[name] = {key: value for key, value in tensors.items() if not isinstance(value, ShardedObject)}
    if optimizer is not None:
        state["optimizer"] = optimizer.sharded_state_dict(
            dict(state), is_loading=is_loading, metadata=metadata
        )
    return state


def _names(chunks: Sequence[torch.nn.Module]) -> list[str]:
    return ["model"] if len(chunks) == 1 else [f"model{index}" for index in range(len(chunks))]


def _plain(chunks: Sequence[torch.nn.Module]) -> list[Any]:
    return list(unwrap_model(list(chunks)))


def _layout() -> dict[str, int]:
    return {
        "world": dist.get_world_size(),
        "tensor": mpu.get_tensor_model_parallel_world_size(),
        "pipeline": mpu.get_pipeline_model_parallel_world_size(),
        "expert": mpu.get_expert_model_parallel_world_size(),
        "expert_tensor": mpu.get_expert_tensor_parallel_world_size(),
        "context": mpu.get_context_parallel_world_size(),
    }


def _random_file(folder: Path) -> Path:
    return folder / f"random_{dist.get_rank():05d}.pt"
