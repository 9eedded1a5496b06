"""Models without memory: parameters that have shapes and dtypes, and no values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors


class _OnMeta(TorchFunctionMode):
    """megatron names the device of each tensor that it makes, so `torch.device("meta")` is not enough."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func in _device_constructors():
            named["device"] = "meta"
        elif func is Tensor.to and args[0].is_meta:  # it would go to a device, where it has no values
            dtypes = [value for value in (*args[1:], *named.values()) if isinstance(value, torch.dtype)]
            args, named = (args[0], *dtypes), {}
            if not dtypes:
                return args[0]
        return func(*args, **named)


@contextmanager
def on_meta() -> Iterator[None]:
    """What is built here lies on the meta device, whatever device it asks for."""
    with _OnMeta():
        yield
