"""The trained weights under their Hugging Face names, and an adapter under PEFT's."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.bridges.transfer import held, parts_of
from rlcore_megatron.mcore.layers.adapter import Adapter, Place
from rlcore_megatron.mcore.role.build import Built
from rlcore_toolkit import adapter_name, current_device


def hf_tensors(built: Built) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every weight of the model, on every rank, in the same order everywhere.

    All ranks must take part, to the end. A tensor is whole: gathered over tensor- and pipeline-parallel
    ranks, without the padding of the vocabulary, detached, in the parameters' dtype and on their device. It
    may share memory with the parameters: copy it before the next optimizer step. A tied output layer does
    not come, as in Hugging Face's own files. An adapter is merged into a copy of its weight.
    """
    adapters = {id(layer.weight): adapter for layer, adapter in built.adapters or ()}
    return built.bridge.export(built.chunks, partial(_merged, adapters) if adapters else held)


@torch.no_grad()
def _merged(adapters: dict[int, Adapter], tensor: Tensor) -> Tensor:
    """What `tensor` is with its adapter; of the experts of a layer each is a view of one tensor."""
    adapter = adapters.get(id(tensor if tensor._base is None else tensor._base))
    if adapter is None:
        return tensor
    expert = tensor.storage_offset() // tensor.numel() if adapter.place.is_expert else None
    merged = adapter.merged(tensor, expert)
    for mark in ("tensor_model_parallel", "partition_dim"):  # by which the parts of ranks are gathered
        if hasattr(tensor, mark):
            setattr(merged, mark, getattr(tensor, mark))
    return merged


@torch.no_grad()
def adapter_tensors(built: Built) -> dict[str, Tensor]:
    """The whole adapter under PEFT's names, on the CPU of every rank. Collective."""
    own: dict[str, Tensor] = {}
    for _, adapter in built.adapters or ():
        for module, part, tensor, is_cut in adapter.parts():
            whole = _whole(tensor, adapter.place, -1 if part == "A" else -2, is_cut)
            is_expert = adapter.place.is_expert
            if part == "B":
                whole = whole if is_expert else whole.flatten(0, -2)
                whole = torch.empty_like(whole).index_copy_(-2, module.rows.to(whole.device), whole)
            experts = _every_expert(whole, module.names) if is_expert else [(module.names[0], whole)]
            own |= {adapter_name(name, part): matrix.to("cpu", copy=True) for name, matrix in experts}
    return _of_all_stages(own)


def _whole(part: Tensor, place: Place, axis: int, is_cut: bool) -> Tensor:
    """The `part` of all ranks that divide it along `axis`."""
    size = parallel.expert_tensor_size() if place.is_expert else parallel.tensor_size()
    group = parallel.expert_tensor_group() if place.is_expert else parallel.tensor_group()
    return torch.cat(parts_of(part, size, group), dim=axis) if is_cut else part.detach()


def _every_expert(own: Tensor, names: Sequence[str]) -> list[tuple[str, Tensor]]:
    """Name and matrix of all experts; own [E, …]: those of this rank."""
    size, group = parallel.expert_size(), parallel.expert_group()
    every: list[Sequence[str]] = [names] * size
    if size > 1:
        dist.all_gather_object(every, names, group=group)
    tensors = [expert for part in parts_of(own, size, group) for expert in part.unbind()]
    return [*zip([name for part in every for name in part], tensors, strict=True)]


def _of_all_stages(own: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the pipeline stages have, together; `own`: of this one."""
    if parallel.pipeline_size() == 1:
        return own
    group = parallel.pipeline_group()
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in own.items()}
    stages: list[Any] = [{}] * parallel.pipeline_size()
    dist.all_gather_object(stages, shapes, group=group)
    every: dict[str, Tensor] = {}
    for stage, known in enumerate(stages):
        for name, (shape, dtype) in known.items():
            is_own = stage == parallel.pipeline_rank()
            tensor = (
                own[name].to(current_device())
                if is_own
                else torch.empty(shape, dtype=dtype, device=current_device())
            )
            dist.broadcast(tensor, src=dist.get_global_rank(group, stage), group=group)
            every[name] = tensor.cpu()
    return every
