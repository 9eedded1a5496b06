"""Kernels that transformers takes by itself where their package is installed: FLA, mamba-ssm, causal-conv1d.

It puts them in the place of a function of its own, which stays at hand. The functions are those of the
process: what is found here holds for every model of the same family in it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

MEASURES = ("of the largest", "of the norm", "in slope")
"""Of how far a tensor is from torch's: the largest difference relative to the largest entry; the norm of the
difference relative to the norm; and how far from 1 the slope of one on the other is, which rounding leaves.
"""
TOLERANCES = {
    torch.float32: (1e-4, 1e-4, 1e-4),
    **dict.fromkeys((torch.bfloat16, torch.float16), (5e-2, 1e-2, 5e-3)),
}
"""The most of each. Torch's own products in bf16 are 4e-3 off by the norm, and 9e-4 by the slope."""
PROBE_TOKENS = 140
"""Of a sequence that tries a kernel: more than two chunks of 64, so that a state is passed on."""


def gaps(found: Tensor, wanted: Tensor) -> tuple[float, float, float]:
    """How far `found` is from `wanted`, by each of `MEASURES`; zeros where both are equal."""
    one, other = found.double(), wanted.double()
    if torch.equal(one, other):
        return 0.0, 0.0, 0.0
    apart = one - other
    slope = (apart * other).sum() / other.square().sum()
    return float(apart.abs().max() / other.abs().max()), float(apart.norm() / other.norm()), abs(float(slope))


def too_far(found: Sequence[Tensor], wanted: Sequence[Tensor], dtype: torch.dtype) -> str | None:
    """How far the worst tensor is, where one is beyond `TOLERANCES`."""
    for one, other in zip(found, wanted, strict=True):
        for measure, gap, most in zip(MEASURES, gaps(one, other), TOLERANCES[dtype], strict=True):
            if not gap <= most:  # NaN fails
                return f"differs from transformers' own code by {gap:.1e} {measure}"
    return None


class BorrowedKernels:
    """Those that layers of a model call; none where their packages are not installed, or for other models.

    `is_kept`: whether the layers still call them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers: dict[type, nn.Module] = {}
        """The first layer of each class that calls one."""
        self._own: dict[str, dict[str, Callable[..., Any]]] = {}
        self.is_kept = True
        for module in model.modules():
            if type(module) not in self.layers and (own := _own_functions(type(module))):
                self.layers[type(module)] = module
                self._own.setdefault(type(module).__module__, {}).update(own)
        self._kernels = {
            space: {name: vars(sys.modules[space])[name] for name in own} for space, own in self._own.items()
        }

    def give_up(self, reason: str) -> None:
        """Let transformers' own functions take their place; a line says why."""
        self._put(self._own)
        self.is_kept = False
        names = ", ".join(name for own in self._own.values() for name in own)
        print(f"{', '.join(kind.__name__ for kind in self.layers)}: torch, as {names} {reason}.", flush=True)

    def check(self, results: Callable[[], Sequence[Tensor]]) -> None:
        """Give them up if `results()` fails, or differs from what it is with transformers' own functions."""
        if not self.layers or not self.is_kept:
            return
        try:
            found = results()
            self._put(self._own)
            reason = too_far(found, results(), found[0].dtype)
        except Exception as error:  # whatever a kernel says where it cannot run
            reason = f"fails here ({type(error).__name__}: {error})"
        if reason:
            self.give_up(reason)
        else:
            self._put(self._kernels)

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Within, a forward without a cache checks outputs and gradients of each of `layers`."""
        with ExitStack() as hooks:
            for module in self.layers.values():
                hooks.callback(module.register_forward_pre_hook(self._check_layer, with_kwargs=True).remove)
            yield

    def _check_layer(self, module: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        self.check(partial(_results, module, args, options))

    def _put(self, functions: Mapping[str, Mapping[str, Callable[..., Any]]]) -> None:
        for space, named in functions.items():
            vars(sys.modules[space]).update(named)


def _own_functions(kind: type[nn.Module]) -> dict[str, Callable[..., Any]]:
    """By name, transformers' own form of what the methods of a class call through a wrapper."""
    space = sys.modules[kind.__module__]
    if not space.__name__.startswith("transformers.models."):
        return {}
    methods = (inspect.unwrap(one) for _, one in inspect.getmembers(kind, inspect.isfunction))
    names = {name for method in methods for name in method.__code__.co_names} & vars(space).keys()
    called = {name: vars(space)[name] for name in sorted(names)}
    return {
        name: one.__wrapped__
        for name, one in called.items()
        if hasattr(one, "__wrapped__") and one.__module__ == space.__name__
    }


@torch.enable_grad()
def _results(module: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> list[Tensor]:
    """The output of the layer, and the gradients of its input and parameters, which keep none."""
    others = dict(options)
    first = args[0] if args else others.pop("hidden_states")
    leaf = first.detach().requires_grad_()
    out = module.forward(leaf, *args[1:], **others)
    out = out[0] if isinstance(out, tuple) else out
    slope = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype)
    leaves = [leaf, *(one for one in module.parameters() if one.requires_grad)]
    gradients = torch.autograd.grad((out * slope).sum(), leaves, materialize_grads=True)
    return [out.detach(), *gradients]
