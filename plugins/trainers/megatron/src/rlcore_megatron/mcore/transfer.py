"""Weights between Hugging Face names and megatron's parallel parameters, over mbridge's layouts.

Loading takes no collective: each rank reads what its stage needs and keeps its slice. Export gathers over the
tensor-parallel ranks of the stage that owns a tensor, or takes an expert from the rank that has it, then
hands it to the other stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rlcore import FP8_DTYPE, FP8_SCALE_SUFFIX, Fp8Block, ModelError, dequantize_fp8, fp8_block
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.experts import expert_part, whole_expert, whole_expert_shape
from rlcore_megatron.mcore.imports import device

if TYPE_CHECKING:
    from rlcore_megatron.mcore.bridge import MBridge

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


class SafetensorsDir:
    """The safetensors of a Hugging Face directory, whatever their number and index.

    `block`: of its FP8 weights, which come out as fp32.
    """

    def __init__(self, path: Path, block: Fp8Block | None = None) -> None:
        self.path = path
        self._block = block
        self._stack = ExitStack()
        self._handles: dict[str, Any] = {}

    def __enter__(self) -> SafetensorsDir:
        files = sorted(self.path.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{self.path} holds no *.safetensors file.")
        for file in files:
            try:
                handle = self._stack.enter_context(safe_open(file, framework="pt", device="cpu"))
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{file} cannot be read as safetensors: {error}.") from error
            self._handles.update(dict.fromkeys(handle.keys(), handle))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self._handles.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._handles:
            raise ModelError(f"{self.path} lacks the weight {name!r} that its config.json calls for.")
        tensor = self._handles[name].get_tensor(name)
        assert isinstance(tensor, Tensor)
        return self._dequantized(name, tensor) if tensor.dtype == FP8_DTYPE else tensor

    def _dequantized(self, name: str, weight: Tensor) -> Tensor:
        if self._block is None:
            raise ModelError(f"{self.path}: {name!r} is FP8, but its config.json says no weight_block_size.")
        of_scales = name + FP8_SCALE_SUFFIX
        if of_scales not in self:
            raise ModelError(f"{self.path} lacks {of_scales!r}, the scales of the FP8 weight {name!r}.")
        try:
            return dequantize_fp8(weight, self[of_scales], self._block)
        except ValueError as error:
            raise ModelError(f"{self.path}: {of_scales!r} has {error}.") from error


def load(bridge: MBridge, inner: Any, chunks: Sequence[nn.Module], write: Write) -> None:
    """Give the parameters of `chunks` what `bridge.path` has for them."""
    block = fp8_block(getattr(bridge.hf_config, "quantization_config", None))
    with SafetensorsDir(bridge.path, block) as source, torch.no_grad():
        for chunk in chunks:
            for name, parameter in _named(bridge, chunk).items():
                hf_names = inner._weight_name_mapping_mcore_to_hf(name)
                if bridge.value_head and name == _OUTPUT:
                    if hf_names[0] in source:  # else a critic that starts from a policy: its head is zero
                        _fill_head(bridge, parameter, source[hf_names[0]], write)
                    continue
                tensors = [source[hf_name] for hf_name in hf_names]
                _fill(bridge, inner, name, parameter, tensors, write)


def _fill_head(bridge: MBridge, parameter: Tensor, weight: Tensor, write: Write) -> None:
    """The head of a critic, which has no vocabulary to pad and is whole on every rank."""
    if weight.shape != parameter.shape:
        raise ModelError(
            f"{bridge.path}: its value head is {tuple(weight.shape)}, expected {tuple(parameter.shape)}."
        )
    write(parameter, weight)


def _fill(
    bridge: MBridge, inner: Any, name: str, parameter: Tensor, tensors: list[Tensor], write: Write
) -> None:
    try:
        whole = inner._weight_to_mcore_format(name, tensors)
        if _EXPERTS in name:
            mine = expert_part(name, whole, parallel.expert_tensor_rank(), parallel.expert_tensor_size())
        else:
            parts = inner._weight_split_across_tp(name, whole, parameter, parallel.tensor_size())
            mine = parts[parallel.tensor_rank()]
        fits = mine.shape == parameter.shape
    # What mbridge and torch raise where a tensor cannot be cut or put together.
    except (AssertionError, RuntimeError, IndexError):
        fits = False
    if not fits:
        shapes = ", ".join(
            f"{hf_name} {tuple(tensor.shape)}"
            for hf_name, tensor in zip(inner._weight_name_mapping_mcore_to_hf(name), tensors, strict=True)
        )
        raise ModelError(f"{bridge.path}: the shapes of its weights do not fit its config.json: {shapes}.")
    write(parameter, mine)


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
    """See `rlcore_megatron.mcore.weights.hf_tensors`."""
    mine = {name: tensor for chunk in chunks for name, tensor in _named(bridge, chunk).items()}
    if bridge.tied:
        mine.pop(_OUTPUT, None)  # the last stage's copy of the embedding
    for entry in _plan(inner, mine):
        tensor = mine.get(entry.name)
        whole = _gather(inner, entry, tensor if tensor is None else read(tensor))
        if bridge.value_head and entry.name == _OUTPUT:
            yield inner._weight_name_mapping_mcore_to_hf(entry.name)[0], whole  # no vocabulary to cut to size
        else:
            yield from zip(*inner._weight_to_hf_format(entry.name, whole), strict=True)


def _gather(inner: Any, entry: _Entry, tensor: Tensor | None) -> Tensor:
    """The whole tensor of `entry` on every rank; `tensor` is this rank's part, None where it has none."""
    if entry.stage != parallel.pipeline_rank():
        whole = torch.empty(entry.shape, dtype=entry.dtype, device=device())
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
        whole = torch.empty(entry.shape, dtype=entry.dtype, device=device())
    else:
        parts = _parts(tensor, parallel.expert_tensor_size(), parallel.expert_tensor_group())
        # A broadcast sends memory as it lies.
        whole = whole_expert(entry.name, parts).contiguous()
    if parallel.expert_size() > 1:
        group = parallel.expert_group()
        dist.broadcast(whole, src=dist.get_global_rank(group, owner), group=group)
    return whole


def _gather_tensor_parallel(inner: Any, name: str, tensor: Tensor) -> Tensor:
    if parallel.tensor_size() == 1 or not getattr(tensor, "tensor_model_parallel", False):
        return tensor.detach().contiguous()
    parts = _parts(tensor, parallel.tensor_size(), parallel.tensor_group())
    whole = inner._weight_merge_across_tp(name, parts, tensor)
    assert isinstance(whole, Tensor)
    return whole


def _parts(tensor: Tensor, size: int, group: dist.ProcessGroup) -> list[Tensor]:
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
    prefix, _, expert = name.rpartition("weight")
    count = inner.config.num_moe_experts // parallel.expert_size()
    for owner in range(parallel.expert_size()):
        peer = owner * count + int(expert) % count
        yield _Entry(f"{prefix}weight{peer}", stage, owner, shape, tensor.dtype)


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
        name = numbers[local]
        if _EXPERTS not in name:
            tensors[name] = tensor
            continue
        first = parallel.expert_rank() * len(tensor)
        tensors.update({f"{name}{first + place}": expert for place, expert in enumerate(tensor.unbind())})
    return tensors
