"""A model of transformers: built without memory for its parameters, sharded, and filled from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlcore import ModelError, torch_dtype
from rlcore_fsdp.shards import local, own_rows
from rlcore_toolkit import FP8_DTYPE, SafetensorsFiles, WeightNames, current_device, decoder_config

if TYPE_CHECKING:
    from rlcore_fsdp.quantized import QuantizedLinear

SCORE = "score.weight"
"""The value head, in memory and in the directory of a model that has one."""


def empty_model(path: str, dtype: str, *, has_files: bool = True) -> PreTrainedModel:
    """The model of a directory, whose parameters are on the meta device. ModelError.

    `has_files`: its weights are there, and not its config.json alone.
    """
    names = SafetensorsFiles.of(Path(path)).names if has_files else ()
    auto: Any = AutoModelForCausalLM  # transformers leaves much of it untyped
    try:
        config = decoder_config(AutoConfig.from_pretrained(path), names)
        # sdpa leaves a soft cap out, and some versions of transformers choose it all the same.
        is_capped = getattr(config, "attn_logit_softcapping", None)
        attention = "eager" if is_capped else None
        with init_empty_weights(include_buffers=False):
            model: Any = auto.from_config(config, dtype=torch_dtype(dtype), attn_implementation=attention)
    except (ValueError, ImportError, KeyError) as error:
        raise ModelError(f"--model: transformers does not build {path}: {error}") from error
    model.tie_weights()
    built: PreTrainedModel = model.eval()
    return built


def blocks_of(model: PreTrainedModel) -> list[nn.Module]:
    """The blocks of a decoder: the members of its outermost lists of modules."""
    found: list[nn.Module] = []
    inside: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not any(name.startswith(f"{other}.") for other in inside):
            inside.append(name)
            found += [block for block in module if next(block.parameters(), None) is not None]
    return found


def divide(
    model: PreTrainedModel,
    dtype: torch.dtype,
    device: torch.device,
    *,
    trains: bool,
    adapter: Sequence[nn.Parameter] | None = None,
) -> None:
    """Which parameters train, in fp32; and the part of each rank, of a model on the meta device.

    `trains`: the whole model does, unless it has an `adapter`, which then trains alone. Parameters of another
    dtype than `dtype` stay whole. So does on one rank what is frozen: FSDP2 would copy it for each forward.
    """
    own = {id(parameter) for parameter in adapter or ()}
    model.requires_grad_(trains and adapter is None)
    for parameter in adapter or ():
        parameter.requires_grad_()
    is_alone = dist.get_world_size() == 1
    whole = [
        one
        for one in model.parameters()
        if id(one) not in own and (one.dtype != dtype or (is_alone and not one.requires_grad))
    ]
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    is_mixed = trains and dtype != torch.float32
    if is_mixed or not is_alone:
        _shard(model, dtype if is_mixed else None, whole, device)


def _shard(
    model: PreTrainedModel, dtype: torch.dtype | None, whole: Sequence[nn.Parameter], device: torch.device
) -> None:
    """Shard each block, and what is beside the blocks, over all ranks.

    `dtype`: of the computation, where it is not that of the parameters, whose gradients are summed in fp32.
    `whole`: parameters that every rank keeps, in their own dtype.
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    options: dict[str, Any] = {"mesh": mesh, "ignored_params": set(whole)}
    if dtype is not None:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in blocks_of(model):
        fully_shard(block, **options)
    kind = type(model)
    root: Any = fully_shard(model, **options)
    # By these, transformers finds its own conversions of the files' names.
    type(root).__name__, type(root).__module__ = kind.__name__, kind.__module__
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # the loss has its denominators
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    root.set_reduce_scatter_unused_params(True)  # ranks may use different experts


def materialize(model: PreTrainedModel, device: torch.device) -> None:
    """Memory for the parameters on `device`, and the buffers there."""
    made = {
        id(one): nn.Parameter(torch.empty_like(one, device=device), requires_grad=one.requires_grad)
        for one in model.parameters()
        if one.is_meta
    }
    for module in model.modules():
        for name, parameter in module._parameters.items():
            module._parameters[name] = made.get(id(parameter), parameter)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                empty = torch.empty_like(buffer, device=device) if buffer.is_meta else buffer.to(device)
                module._buffers[name] = empty


def fill(
    model: PreTrainedModel, path: str, state: Mapping[str, Tensor], quantized: Mapping[str, QuantizedLinear]
) -> WeightNames:
    """The weights of a directory, a tensor at a time, into `state`. ModelError where one is missing.

    Those of `quantized` layers go there.
    """
    files = SafetensorsFiles.of(Path(path))
    names = WeightNames(model, files.names, state)
    filled: set[str] = set()
    held = {source for name, source in names.sources.items() if name in quantized}

    def read(source: str, rows: slice) -> Tensor:
        return (files.read if source in held else files.full)(source, rows)

    with torch.no_grad():
        for name, tensor in names.tensors(read, lambda name: own_rows(state[name])):
            target = local(state[name])
            if tensor.shape != target.shape:
                shapes = tuple(tensor.shape), tuple(target.shape)
                raise ModelError(f"{path}: {name} has the shape {shapes[0]}, not {shapes[1]}.")
            # FP8 has no isfinite
            if not (tensor if tensor.dtype.itemsize > 1 else tensor.float()).isfinite().all():
                raise ModelError(f"{path}: its weight {name!r} holds NaN or infinity.")
            if name not in quantized:
                target.copy_(tensor)
            elif tensor.dtype == FP8_DTYPE:  # what the directory holds
                quantized[name].put({"codes": tensor, "scales": files.scales(names.sources[name])})
            else:
                quantized[name].put(quantized[name].codec.encode(tensor.to(current_device(), target.dtype)))
            filled.add(name)
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    if missing := sorted(state.keys() - filled - tied - {SCORE}):
        raise ModelError(f"{path}: the weights have no {missing[0]} ({len(missing)} are missing).")
    return names


def plain_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """The model's own tensors by their names without an adapter."""
    state = model.state_dict(keep_vars=True)
    return {n.replace(".base_layer.", "."): one for n, one in state.items() if ".lora_" not in n}
