"""Low-rank adapters beside megatron's linear layers, split as Hugging Face splits these.

A layer of megatron joins several of Hugging Face: query, key and value, or gate and up. Each has its A
(https://arxiv.org/abs/2106.09685). With x [T, 1, I] and h_m = A_m x of module m, the rows of the joint
output that belong to m get scale · B_m h_m. All modules together take two products: the As stand on top of
each other, and the Bs in the blocks of one matrix, whose rows have megatron's order.

What tensor-parallel ranks exchange has the width of the rank, not of the model:

| layer | a rank has | exchanged between A and B (with sequence parallelism) |
| --- | --- | --- |
| column-parallel | A, rows of B | the gradient of h is summed (h is gathered) |
| row-parallel | columns of A, B | h is summed (summed and scattered) |
| whole on each rank | A, B | nothing |
| into an expert | A, rows of B | nothing: megatron's dispatcher sums the gradient of x |
| out of an expert | columns of A, B | nothing: megatron's dispatcher sums the outputs |
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from torch import Tensor, nn
from torch.nn import functional

from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.layers.grouped import each, grouped
from rlcore_toolkit import with_product

ADAPTER = ".adapter."
"""What the names of an adapter's parameters have in them, and no others."""


class Place(StrEnum):
    """How ranks divide a linear layer."""

    COLUMN = "column-parallel"
    ROW = "row-parallel"
    WHOLE = "whole on each rank"
    INTO_EXPERT = "into an expert"
    OUT_OF_EXPERT = "out of an expert"

    @property
    def is_expert(self) -> bool:
        """Whether its matrices are those of experts."""
        return self in (Place.INTO_EXPERT, Place.OUT_OF_EXPERT)

    @property
    def cuts_rows(self) -> bool:
        """Whether a rank has some rows of W and B."""
        return self in (Place.COLUMN, Place.INTO_EXPERT)

    @property
    def cuts_columns(self) -> bool:
        """Whether a rank has some columns of W and A."""
        return self in (Place.ROW, Place.OUT_OF_EXPERT)


@dataclass(frozen=True, kw_only=True)
class AdaptedModule:
    """A layer of Hugging Face within one of megatron's.

    `names`: its own, or of experts all that this rank has. `rows` int64 [outputs]: of the whole W, for each
    row in megatron's order the one in Hugging Face's. `first`: this rank's A [E?, rank, inputs] and
    B [E?, outputs, rank], in megatron's order; E: its experts. The outputs of gate and up, where they are one
    module, are [2, outputs / 2], of which ranks divide the second dimension.
    """

    names: Sequence[str]
    rows: Tensor
    first: tuple[Tensor, Tensor]


class Adapter(nn.Module):
    """The adapters of one linear layer, which calls it with its input and output.

    `order`: for each row of the layer's output, the row of the adapted modules' outputs, one module after
    another; their number for a row without an adapter. None: it is that row itself.
    """

    order: Tensor | None

    def __init__(
        self,
        modules: Sequence[AdaptedModule],
        order: Tensor | None,
        place: Place,
        *,
        scale: float,
        dropout: float,
        sequence_parallel: bool,
    ) -> None:
        super().__init__()
        nothing = torch.empty(0)  # the optimizer moves parameters: the first values would stay beside them
        self.hf_modules = [replace(module, first=(nothing, nothing)) for module in modules]
        self.place = place
        self.scale, self.dropout = scale, dropout
        self.sequence_parallel = sequence_parallel
        self.a = nn.ParameterList([nn.Parameter(module.first[0]) for module in modules])
        self.b = nn.ParameterList([nn.Parameter(module.first[1]) for module in modules])
        self.register_buffer("order", order, persistent=False)
        for _, _, part, is_cut in self.parts():
            self._mark(part, is_cut)

    def _mark(self, part: Any, is_cut: bool) -> None:
        """Tell megatron which ranks have the same part, and which have a part of its gradient."""
        axis = part.dim() - (1 if self.place.cuts_columns else 2)
        if self.place.is_expert:
            part.allreduce = False
            # of all ranks with the same, one counts in the gradient's norm
            part.shared = not is_cut and parallel.expert_tensor_rank() > 0
        if self.place.is_expert or is_cut:
            set_tensor_model_parallel_attributes(part, is_parallel=True, dim=axis, stride=1)
        else:
            # what is whole meets a part of the sequence on each rank
            part.sequence_parallel = self.sequence_parallel

    def parts(self) -> Iterator[tuple[AdaptedModule, str, nn.Parameter, bool]]:
        """Each module with "A" or "B", that part of it, and whether ranks divide it."""
        for module, a, b in zip(self.hf_modules, self.a, self.b, strict=True):
            yield module, "A", a, self.place.cuts_columns
            yield module, "B", b, self.place.cuts_rows

    def frozen(self) -> "Adapter":
        """A copy that is not trained."""
        shared = {id(self.hf_modules): self.hf_modules}
        return copy.deepcopy(self, shared).requires_grad_(requires_grad=False)

    def added(self, output: Tensor, x: Tensor, counts: Sequence[int] = ()) -> Tensor:
        """output [T, 1, O] + scale · B A x, for x [T, 1, I].

        Of experts [T, O] and [T, I], sorted by expert: each has `counts` rows.
        """
        h = self._spread(self._down(x, counts))
        if self.place.is_expert:
            return torch.add(output, _each(h, self.joint_b(), counts), alpha=self.scale)
        rows = torch.addmm(output.flatten(0, -2), h.flatten(0, -2), self.joint_b().t(), alpha=self.scale)
        return rows.view_as(output)

    def merged(self, weight: Tensor, expert: int | None = None) -> Tensor:
        """`weight`, this rank's part of W, with the product; made in fp32 and cast once."""
        a, b = torch.cat(list(self.a), dim=-2), self.joint_b()
        if expert is not None:
            a, b = a[expert], b[expert]
        return with_product(weight, a, b, self.scale)

    def joint_b(self) -> Tensor:
        """The Bs in the blocks of one matrix [E?, O, modules · rank], whose rows are those of the output."""
        return self._summed(self._blocks(), self.place is Place.OUT_OF_EXPERT)

    def _blocks(self) -> Tensor:
        parts: list[Tensor] = list(self.b)
        if not self.place.is_expert:
            parts = [part.flatten(0, -2) for part in parts]
        if len(parts) == 1 and self.order is None:
            return parts[0]
        rank, last = parts[0].shape[-1], len(parts) - 1
        blocks = [
            functional.pad(part, (place * rank, (last - place) * rank)) for place, part in enumerate(parts)
        ]
        if self.order is None:
            return torch.cat(blocks, dim=-2)
        nothing = blocks[0].new_zeros(*blocks[0].shape[:-2], 1, blocks[0].shape[-1])
        return torch.cat([*blocks, nothing], dim=-2).index_select(-2, self.order)

    def _down(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """The h of all modules, side by side [..., modules · rank]."""
        is_partial, parts = self.place is Place.INTO_EXPERT, list(self.a)
        if not (self.dropout and self.training):
            return _times(x, self._summed(torch.cat(parts, dim=-2), is_partial), counts)
        parts = [self._summed(part, is_partial) for part in parts]
        # PEFT's modules drop each for itself
        products = [_times(functional.dropout(x, self.dropout), part, counts) for part in parts]
        return torch.cat(products, dim=-1)

    def _spread(self, h: Tensor) -> Tensor:
        """What the tensor-parallel ranks exchange."""
        if parallel.tensor_size() == 1 or self.place not in (Place.COLUMN, Place.ROW):
            return h
        if self.place is Place.COLUMN:
            in_sequence = gather_from_sequence_parallel_region
            otherwise = copy_to_tensor_model_parallel_region
        else:
            in_sequence = reduce_scatter_to_sequence_parallel_region
            otherwise = reduce_from_tensor_model_parallel_region
        spread: Tensor = (in_sequence if self.sequence_parallel else otherwise)(h)
        return spread

    def _summed(self, part: Tensor, is_partial: bool) -> Tensor:
        """`part`; where each rank of an expert has a part of its gradient, backward sums these."""
        if not is_partial or parallel.expert_tensor_size() == 1:
            return part
        whole: Tensor = copy_to_tensor_model_parallel_region(part, group=parallel.expert_tensor_group())
        return whole


class AdapterSet:
    """The adapters of one policy over a model. Policies that share it put theirs in place by turns."""

    def __init__(self, pairs: Sequence[tuple[Any, Adapter | None]]) -> None:
        """`pairs`: every linear layer that may have an adapter, and that which it has here."""
        self._pairs = pairs

    def __iter__(self) -> Iterator[tuple[Any, Adapter]]:
        """The layers that have one, with it."""
        return ((layer, adapter) for layer, adapter in self._pairs if adapter is not None)

    def put(self) -> None:
        """From now on the model computes with these and no others. No collective."""
        for layer, adapter in self._pairs:
            layer.adapter = adapter
            if adapter is not None:
                adapter.train(layer.training)  # it may have been away when that changed

    def none(self) -> "AdapterSet":
        """No adapters."""
        return AdapterSet([(layer, None) for layer, _ in self._pairs])

    def frozen(self) -> "AdapterSet":
        """Copies that training leaves alone."""
        return AdapterSet([(layer, adapter and adapter.frozen()) for layer, adapter in self._pairs])


def _times(x: Tensor, matrix: Tensor, counts: Sequence[int]) -> Tensor:
    return _each(x, matrix, counts) if counts else functional.linear(x, matrix)


def _each(x: Tensor, matrices: Tensor, counts: Sequence[int]) -> Tensor:
    """x [T, I], `counts[e]` rows for each of `matrices` [E, O, I] → [T, O]."""
    # the kernel takes rows of whole 16 bytes
    is_aligned = matrices.shape[-1] % 8 == 0 and matrices.shape[-2] % 8 == 0
    return (grouped if x.is_cuda and x.dtype == torch.bfloat16 and is_aligned else each)(x, matrices, counts)
