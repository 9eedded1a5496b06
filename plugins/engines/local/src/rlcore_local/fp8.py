"""Weights that the engine holds in FP8, beside the full ones that it computes with."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rlcore import FP8_SCALE_SUFFIX, Fp8Block
from rlcore_local.requests import RequestError
from rlcore_toolkit import FP8_DTYPE, dequantize_fp8


class Fp8Held:
    """`tensors`: weights in FP8 and their scales, by their names on disk; empty for a model without any.

    No product of matrices takes FP8 on a CPU, and to dequantize anew for each token would cost more than the
    product. So the model has what they stand for, and these are kept for checksums and for changes.
    """

    def __init__(self, block: Fp8Block | None, tensors: Mapping[str, Tensor]) -> None:
        self._block = block
        self.tensors = dict(tensors)

    @classmethod
    def of(cls, block: Fp8Block, tensors: Mapping[str, Tensor]) -> Fp8Held:
        """What is FP8 of a directory's tensors."""
        names = [name for name, tensor in tensors.items() if tensor.dtype == FP8_DTYPE]
        if lacking := [name for name in names if name + FP8_SCALE_SUFFIX not in tensors]:
            raise RequestError(f"the FP8 weight {lacking[0]!r} has no scales")
        every = [name + suffix for name in names for suffix in ("", FP8_SCALE_SUFFIX)]
        return cls(block, {name: tensors[name] for name in every})

    def split(self, new: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What of `new` is held in FP8, or scales of it, and the rest. `RequestError`: it came otherwise."""
        small = {name: tensor for name, tensor in new.items() if name in self.tensors}
        for name, tensor in new.items():
            expected = self.tensors[name].dtype if name in small else None
            if expected != tensor.dtype and (expected or tensor.dtype == FP8_DTYPE):
                raise RequestError(
                    f"{name}: it is {_name(tensor)}, but the model has {_name(self.tensors.get(name))}"
                )
        return small, {name: tensor for name, tensor in new.items() if name not in small}

    def stand_for(self, small: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The full weights (fp32) that are new by `small`: of a weight or its scales the other may be held.

        `RequestError` where the two do not fit.
        """
        now = {**self.tensors, **small}
        names = dict.fromkeys(name.removesuffix(FP8_SCALE_SUFFIX) for name in small)
        full = {}
        for name in names:
            assert self._block is not None, "there are FP8 weights"
            try:
                full[name] = dequantize_fp8(now[name], now[name + FP8_SCALE_SUFFIX], self._block)
            except ValueError as error:
                raise RequestError(f"{name}{FP8_SCALE_SUFFIX}: {error}") from error
        return full

    def keep(self, small: Mapping[str, Tensor]) -> None:
        """Hold these from now on; copies, since what comes may be a file that is mapped."""
        self.tensors |= {name: tensor.clone() for name, tensor in small.items()}


def _name(tensor: Tensor | None) -> str:
    return "a full weight" if tensor is None else str(tensor.dtype).removeprefix("torch.")
