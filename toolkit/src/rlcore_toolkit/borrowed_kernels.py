"""Kernels that transformers takes by itself where their package is installed: FLA, mamba-ssm, causal-conv1d.

It puts them in the place of a function of its own, which stays at hand.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

_NEAR = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-2}
"""How far values and gradients may be from those of transformers' own functions, relative to the largest."""


@contextmanager
def checked_kernels(model: nn.Module) -> Iterator[None]:
    """Within, a forward of `model` without a cache keeps the kernels that compute what transformers does.

    The first layer of each class that calls one compares its outputs, and their gradient in its input. Where
    they differ, or a kernel fails, transformers' own functions take its place, and a line says so.
    """
    with ExitStack() as hooks:
        seen: set[type] = set()
        for module in model.modules():
            if type(module) not in seen and (own := _own_functions(module)):
                seen.add(type(module))
                check = partial(_check, own=own)
                hooks.callback(module.register_forward_pre_hook(check, with_kwargs=True).remove)
        yield


def _own_functions(module: nn.Module) -> dict[str, Callable[..., Any]]:
    """By name, transformers' own form of what the methods of `module` call through a wrapper."""
    space = sys.modules[type(module).__module__]
    if not space.__name__.startswith("transformers.models."):
        return {}
    methods = (inspect.unwrap(one) for _, one in inspect.getmembers(type(module), inspect.isfunction))
    names = {name for method in methods for name in method.__code__.co_names} & vars(space).keys()
    called = {name: vars(space)[name] for name in sorted(names)}
    return {
        name: one.__wrapped__
        for name, one in called.items()
        if hasattr(one, "__wrapped__") and one.__module__ == space.__name__
    }


def _check(
    module: Any, args: tuple[Any, ...], options: Mapping[str, Any], *, own: Mapping[str, Callable[..., Any]]
) -> None:
    names = vars(sys.modules[type(module).__module__])
    kernels = {name: names[name] for name in own}
    try:
        found = _results(module, args, options)
        names.update(own)
        pairs = zip(found, _results(module, args, options), strict=True)
        gaps = [float((a - b).abs().max() / b.abs().max()) for a, b in pairs]
        if all(gap <= _NEAR[found[0].dtype] for gap in gaps):  # what is not a number is not
            names.update(kernels)
            return
        reason = f"differs from transformers' own code by {max(gaps):.1e}"
    except Exception as error:  # whatever a kernel says where it cannot run
        names.update(own)
        reason = f"fails here ({type(error).__name__}: {error})"
    print(f"{type(module).__name__} computes in torch: a kernel among {', '.join(own)} {reason}.", flush=True)


@torch.enable_grad()
def _results(module: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> list[Tensor]:
    """The output of the layer, and the gradient in its input; no parameter gets one."""
    others = dict(options)
    first = args[0] if args else others.pop("hidden_states")
    leaf = first.detach().requires_grad_()
    out = module.forward(leaf, *args[1:], **others)
    out = out[0] if isinstance(out, tuple) else out
    slope = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype)
    [gradient] = torch.autograd.grad((out * slope).sum(), [leaf])
    return [out.detach(), gradient]
