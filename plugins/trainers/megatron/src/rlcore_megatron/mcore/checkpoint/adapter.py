"""Where the parts of an adapter lie in a checkpoint: by the names of their modules, whatever the layout."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from torch import Tensor, nn

from rlcore import AdapterSpec
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.layers.adapter import ADAPTER, Adapter, AdapterSet
from rlcore_toolkit import adapter_name, write_adapter


@dataclass(frozen=True, kw_only=True)
class StagedAdapter:
    """The whole adapter, in host memory. `base`: the directory of the model beside it."""

    spec: AdapterSpec
    base: Path
    tensors: Mapping[str, Tensor]

    def write(self, folder: Path) -> None:
        """Write it as PEFT does."""
        write_adapter(folder, self.spec, self.base, self.tensors)


def sharded_adapter(chunk: nn.Module, adapters: AdapterSet) -> dict[str, ShardedTensor]:
    """State-dict name → place of each part of the adapters in `chunk`, which are in place."""
    places = {id(tensor): place for _, adapter in adapters for tensor, place in _places(adapter)}
    parameters = chunk.named_parameters()
    return {name: places[id(tensor)] for name, tensor in parameters if ADAPTER in name}


def _places(adapter: Adapter) -> list[tuple[Tensor, ShardedTensor]]:
    return [
        (tensor, _place(adapter.place.is_expert, module.names[0], part, tensor, is_cut))
        for module, part, tensor, is_cut in adapter.parts()
    ]


def _place(is_expert: bool, module: str, part: str, tensor: Tensor, is_cut: bool) -> ShardedTensor:
    axis = tensor.dim() - (1 if part == "A" else 2)
    if is_expert:
        rank, size = parallel.expert_tensor_rank(), parallel.expert_tensor_size()
        offsets = [(0, parallel.expert_rank(), parallel.expert_size())]
        copy = mpu.get_expert_data_parallel_rank()
    else:
        rank, size = parallel.tensor_rank(), parallel.tensor_size()
        offsets, copy = [], mpu.get_data_parallel_rank(with_context_parallel=True)
    offsets += [(axis, rank, size)] if is_cut else []
    # one tensor for all experts of a layer
    name = adapter_name(re.sub(r"\.experts\.\d+\.", ".experts.", module), part)
    return ShardedTensor.from_rank_offsets(
        name, tensor, *offsets, replica_id=(0, 0 if is_cut else rank, copy)
    )
