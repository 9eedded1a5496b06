"""Plain memory where SGLang's adapters ask for pinned memory, which a machine without a GPU cannot give."""
# mypy: ignore-errors
# (sglang is not where this is type-checked)

import functools

import torch


def install() -> None:
    """Has torch ignore `pin_memory`. SGLang's `torch_native` backend for adapters does not ask if it can."""
    torch.Tensor.pin_memory = lambda self, device=None: self
    for name in ("tensor", "zeros"):
        setattr(torch, name, _unpinned(getattr(torch, name)))


def _unpinned(make):
    @functools.wraps(make)
    def plain(*args, pin_memory=False, **kwargs):
        return make(*args, **kwargs)

    return plain
