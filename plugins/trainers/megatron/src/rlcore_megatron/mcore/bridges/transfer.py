"""Weights between Hugging Face names and megatron's parallel parameters, over mbridge's layouts.

Loading takes no collective: each rank reads what its stage needs and keeps its slice. Export gathers over the
tensor-parallel ranks of the stage that owns a tensor, or takes an expert from the rank that has it, then
hands it to the other stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlcore import ModelError
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.bridges.files import SafetensorsDir
from rlcore_megatron.mcore.layers.adapter import ADAPTER
from rlcore_megatron.mcore.layers.experts import expert_part, whole_expert, whole_expert_shape
from rlcore_toolkit import current_device

if TYPE_CHECKING:
    from rlcore_megatron.mcore.bridges.bridge import MBridge

_OUTPUT = "output_layer.weight"
_EXPERTS = ".mlp.experts."

Read = Callable[[Tensor], Tensor]
"""The values of a tensor of the model: itself, or what a model on the meta device has elsewhere."""

Write = Callable[[Tensor, Tensor], None]
"""Takes a tensor of the model (a parameter, a buffer or a view of one) and the values that are its own."""


def held(tensor: Tensor) -> Tensor:
    """The `Read` of a model that holds its values."""
    return tensor


def copy_into(tensor: Tensor, values: Tensor) -> None:
    """The `Write` of a model that holds its values."""
    tensor.copy_(values)


def load(bridge: MBridge, inner: Any, chunks: Sequence[nn.Module], write: Write) -> None:
    """Give the parameters of `chunks` what `bridge.path` has for them."""
    source = bridge.source()
    with torch.no_grad():
        for chunk in chunks:
            for name, parameter in _named(bridge, chunk).items():
                hf_names = inner._weight_name_mapping_mcore_to_hf(name)
                if bridge.value_head and name == _OUTPUT:
                    if hf_names[0] in source.files:  # else a critic starts from a policy: its head is zero
                        _fill_head(bridge, parameter, source[hf_names[0]], write)
                    continue
                in_files = [bridge.in_files(hf_name) for hf_name in hf_names]
                tensors = [_stored(source, inner, name, stored) for stored in in_files]
                for stored, tensor in zip(in_files, tensors, strict=True):
                    if not tensor.isfinite().all():
                        raise ModelError(f"{bridge.path}: its weight {stored!r} holds NaN or infinity.")
                write(parameter, own_part(bridge, inner, name, parameter, tensors))


def _stored(source: SafetensorsDir, inner: Any, name: str, hf_name: str) -> Tensor:
    """What the parameter `name` has of the tensor `hf_name`: all of it, or an expert's part."""
    return source.row(hf_name, int(expert_number(name)[1])) if _is_row(inner, name) else source[hf_name]


def _is_row(inner: Any, name: str) -> bool:
    """Whether the parameter `name` is one expert of a tensor that has all of a layer's."""
    return _EXPERTS in name and bool(inner.joint)


def expert_number(name: str) -> tuple[str, str]:
    """`name` without the number of the expert, and that number; empty where there is none."""
    stem = name.rstrip("0123456789")
    return stem, name[len(stem) :]


def _fill_head(bridge: MBridge, parameter: Tensor, weight: Tensor, write: Write) -> None:
    """The head of a critic, which has no vocabulary to pad and is whole on every rank."""
    if weight.shape != parameter.shape:
        raise ModelError(
            f"{bridge.path}: its value head is {tuple(weight.shape)}, expected {tuple(parameter.shape)}."
        )
    write(parameter, weight)


def own_part(bridge: MBridge, inner: Any, name: str, parameter: Tensor, tensors: list[Tensor]) -> Tensor:
    """This rank's part of the parameter that `tensors` of the directory make. ModelError: they do not fit."""
    try:
        whole = inner._weight_to_mcore_format(name, tensors)
        if _EXPERTS in name:
            mine = expert_part(name, whole, parallel.expert_tensor_rank(), parallel.expert_tensor_size())
        else:
            parts = inner._weight_split_across_tp(name, whole, parameter, parallel.tensor_size())
            mine = parts[parallel.tensor_rank()]
        if mine.shape == parameter.shape:
            return mine
    # What mbridge and torch raise where a tensor cannot be cut or put together.
    except (AssertionError, RuntimeError, IndexError):
        pass
    named = zip(inner._weight_name_mapping_mcore_to_hf(name), tensors, strict=True)
    shapes = ", ".join(f"{hf_name} {tuple(tensor.shape)}" for hf_name, tensor in named)
    raise ModelError(f"{bridge.path}: the shapes of its weights do not fit its config.json: {shapes}.")


@dataclass(frozen=True)
class _Entry:
    """One tensor of the whole model: the stage that has it, and its shape once gathered.

    `owner`: the expert-parallel rank that has it, or the parts of it; None where each rank of the stage has
    (a part of) it.
    """

    name: str
    stage: int
    owner: int | None
    shape: tuple[int, ...]
    dtype: torch.dtype


def export(
    bridge: MBridge, inner: Any, chunks: Sequence[nn.Module], read: Read
) -> Iterator[tuple[str, Tensor]]:
    """Yields whole tensors by the names in the bridge's files, as
    `rlcore_megatron.mcore.role.weights.hf_tensors` says; those that are carried come last.
    """
    mine = {name: tensor for chunk in chunks for name, tensor in _named(bridge, chunk).items()}
    if bridge.tied:
        mine.pop(_OUTPUT, None)  # the last stage's copy of the embedding
    rows = _Rows(int(inner.config.num_moe_experts or 0))
    for entry in _plan(inner, mine):
        tensor = mine.get(entry.name)
        whole = _gather(inner, entry, tensor if tensor is None else read(tensor))
        if bridge.value_head and entry.name == _OUTPUT:
            yield inner._weight_name_mapping_mcore_to_hf(entry.name)[0], whole  # no vocabulary to cut to size
            continue
        names, tensors = inner._weight_to_hf_format(entry.name, whole)
        pairs = zip(map(bridge.in_files, names), tensors, strict=True)
        yield from rows.joined(entry.name, pairs) if _is_row(inner, entry.name) else pairs
    if bridge.nesting.carried and not bridge.value_head:
        source = bridge.source()
        for name in bridge.nesting.carried:
            yield name, source[name].to(current_device())


class _Rows:
    """Experts that come one by one, and leave as one tensor of all `count` of a layer."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._whole: dict[str, Tensor] = {}
        self._missing: dict[str, int] = {}

    def joined(self, name: str, pairs: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Take what the parameter `name` is in files; yields what is complete by that."""
        place = int(expert_number(name)[1])
        for hf_name, part in pairs:
            if hf_name not in self._whole:
                self._whole[hf_name] = part.new_empty(self._count, *part.shape)
            self._whole[hf_name][place] = part
            self._missing[hf_name] = self._missing.get(hf_name, self._count) - 1
            if not self._missing[hf_name]:
                yield hf_name, self._whole.pop(hf_name)


def _gather(inner: Any, entry: _Entry, tensor: Tensor | None) -> Tensor:
    """The whole tensor of `entry` on every rank; `tensor` is this rank's part, None where it has none."""
    if entry.stage != parallel.pipeline_rank():
        whole = torch.empty(entry.shape, dtype=entry.dtype, device=current_device())
    elif entry.owner is not None:
        whole = _from_owner(entry, entry.owner, tensor)
    else:
        assert tensor is not None
        whole = _gather_tensor_parallel(inner, entry.name, tensor)
    if parallel.pipeline_size() > 1:
        group = parallel.pipeline_group()
        dist.broadcast(whole, src=dist.get_global_rank(group, entry.stage), group=group)
    return whole


def _from_owner(entry: _Entry, owner: int, tensor: Tensor | None) -> Tensor:
    if tensor is None:
        whole = torch.empty(entry.shape, dtype=entry.dtype, device=current_device())
    else:
        parts = parts_of(tensor, parallel.expert_tensor_size(), parallel.expert_tensor_group())
        # A broadcast sends memory as it lies.
        whole = whole_expert(entry.name, parts).contiguous()
    if parallel.expert_size() > 1:
        group = parallel.expert_group()
        dist.broadcast(whole, src=dist.get_global_rank(group, owner), group=group)
    return whole


def _gather_tensor_parallel(inner: Any, name: str, tensor: Tensor) -> Tensor:
    if parallel.tensor_size() == 1 or not getattr(tensor, "tensor_model_parallel", False):
        return tensor.detach().contiguous()
    parts = parts_of(tensor, parallel.tensor_size(), parallel.tensor_group())
    return cast(Tensor, inner._weight_merge_across_tp(name, parts, tensor))


def parts_of(tensor: Tensor, size: int, group: dist.ProcessGroup) -> list[Tensor]:
    """What each rank of `group` has in the place of `tensor`, in its order."""
    own = tensor.detach().contiguous()
    if size == 1:
        return [own]
    parts = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(parts, own, group=group)
    return parts


def _plan(inner: Any, mine: Mapping[str, Tensor]) -> list[_Entry]:
    """The tensors of all stages, the same list on every rank."""
    entries = [entry for name, tensor in mine.items() for entry in _entries(inner, name, tensor)]
    if parallel.pipeline_size() == 1:
        return entries
    stages: list[list[_Entry]] = [[] for _ in range(parallel.pipeline_size())]
    dist.all_gather_object(stages, entries, group=parallel.pipeline_group())
    return [entry for stage in stages for entry in stage]


def _entries(inner: Any, name: str, tensor: Tensor) -> Iterator[_Entry]:
    """One; for an expert, one for it and one for its peer on each of the other expert-parallel ranks."""
    stage = parallel.pipeline_rank()
    if _EXPERTS not in name:
        yield _Entry(name, stage, None, _whole_shape(tensor), tensor.dtype)
        return
    shape = whole_expert_shape(name, tensor.shape, parallel.expert_tensor_size())
    stem, expert = expert_number(name)
    count = inner.config.num_moe_experts // parallel.expert_size()
    for owner in range(parallel.expert_size()):
        peer = owner * count + int(expert) % count
        yield _Entry(f"{stem}{peer}", stage, owner, shape, tensor.dtype)


def _whole_shape(tensor: Tensor) -> tuple[int, ...]:
    shape = list(tensor.shape)
    if getattr(tensor, "tensor_model_parallel", False):
        shape[tensor.partition_dim] *= parallel.tensor_size()  # type: ignore[attr-defined] # megatron's mark
    return tuple(shape)


def _named(bridge: MBridge, chunk: nn.Module) -> dict[str, Tensor]:
    """What a chunk holds, parameters and saved buffers, its layers numbered through the whole model.

    Of the experts of this rank, each is a view by itself, numbered through the layer.
    """
    numbers = bridge.numbered(chunk)
    buffers = {name: buffer for name, buffer in chunk.named_buffers() if name in numbers}
    tensors: dict[str, Tensor] = {}
    for local, tensor in {**dict(chunk.named_parameters()), **buffers}.items():
        if ADAPTER in local:  # it is no weight of the model
            continue
        name = numbers[local]
        if _EXPERTS not in name:
            tensors[name] = tensor
            continue
        first = parallel.expert_rank() * len(tensor)
        tensors.update({f"{name}{first + place}": expert for place, expert in enumerate(tensor.unbind())})
    return tensors
