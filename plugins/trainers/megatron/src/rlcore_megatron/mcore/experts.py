"""The experts that a rank holds: gated MLPs, each over the tokens that chose it.

Of an expert that is cut, each rank of its expert-tensor-parallel group has a run of the inner values: as many
rows of the gate's matrix and of the other that goes up, and as many columns of the one that goes down.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, get_expert_parallel_rng_tracker_name
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore.imports import device

_GATE_UP = ".linear_fc1."


class Experts(MegatronModule):  # type: ignore[misc] # megatron-core is untyped
    """What MoELayer calls between dispatch and combination, which sums what the parts of an expert give."""

    def __init__(self, num_local_experts: int, config: TransformerConfig, *, pg_collection: Any) -> None:
        super().__init__(config=config)
        hidden, inner = config.hidden_size, config.moe_ffn_hidden_size // pg_collection.expt_tp.size()
        self.linear_fc1 = GateUp(num_local_experts, hidden, 2 * inner, config, pg_collection)
        self.linear_fc2 = Down(num_local_experts, inner, hidden, config, pg_collection)

    def forward(self, hidden: Tensor, tokens_per_expert: Tensor, weights: Tensor) -> tuple[Tensor, None]:
        """hidden [T, H], sorted by expert; weights [T] of the router → ([T, H], no bias)."""
        counts = tokens_per_expert.tolist()
        gate, up = self.linear_fc1(hidden, counts).chunk(2, dim=-1)
        inner = functional.silu(gate) * up
        # before the second layer: what is kept for backward is narrower
        return self.linear_fc2((inner * weights[:, None]).to(hidden.dtype), counts), None


class GroupedLinear(MegatronModule):  # type: ignore[misc] # as above
    """A linear layer an expert, without bias: `weight` [experts, outputs, inputs]."""

    cut_axis: ClassVar[int]
    """Of `weight`, where experts are cut."""

    def __init__(
        self, experts: int, inputs: int, outputs: int, config: TransformerConfig, pg_collection: Any
    ) -> None:
        super().__init__(config=config)
        self._expert_group, self._data_group = pg_collection.ep, pg_collection.expt_dp
        self._tensor_group = pg_collection.expt_tp
        weight = torch.empty(experts, outputs, inputs, dtype=config.params_dtype, device=device())
        if config.perform_initialization:
            with get_cuda_rng_tracker().fork(get_expert_parallel_rng_tracker_name()):
                for expert in weight:
                    config.init_method(expert)
        self.weight = torch.nn.Parameter(weight)
        # megatron's marks: its gradient is summed over the ranks that hold the same experts, and it is no
        # copy of a tensor-parallel peer's
        self.weight.allreduce = False  # type: ignore[attr-defined]
        set_tensor_model_parallel_attributes(self.weight, is_parallel=True, dim=self.cut_axis, stride=1)

    def forward(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """x [T, inputs], `counts[e]` rows of each expert → [T, outputs]."""
        if x.is_cuda and x.dtype == torch.bfloat16:
            return grouped(x, self.weight, counts)
        return each(x, self.weight, counts)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Sequence[Any] = (), metadata: Any = None
    ) -> dict[str, Any]:
        """One tensor of all experts of the layer: of which this rank has a run, or parts of a run."""
        axis = len(sharded_offsets)
        offsets = (*sharded_offsets, (axis, self._expert_group.rank(), self._expert_group.size()))
        name, replica = f"{prefix}weight", (0, 0, self._data_group.rank())
        return {name: self._sharded(name, offsets, replica, axis)}

    def _sharded(self, name: str, offsets: Sequence[Any], replica: tuple[int, int, int], axis: int) -> Any:
        """`offsets` say which experts; `axis`: their own in the whole tensor."""
        raise NotImplementedError


class GateUp(GroupedLinear):
    """Into an expert: the rows of the gate, and those of the other matrix behind them."""

    cut_axis = 1

    def _sharded(self, name: str, offsets: Sequence[Any], replica: tuple[int, int, int], axis: int) -> Any:
        rank, size = self._tensor_group.rank(), self._tensor_group.size()

        def halves(key: str, weight: Tensor, replica: Any, _: Any) -> list[ShardedTensor]:
            return [
                ShardedTensor.from_rank_offsets(
                    key,
                    half,
                    *offsets,
                    (axis + 1, place, 2 * size),
                    replica_id=replica,
                    prepend_axis_num=axis,
                )
                for half, place in zip(weight.chunk(2, dim=1), (rank, size + rank), strict=True)
            ]

        if size > 1:
            return ShardedTensorFactory(name, self.weight, halves, partial(torch.cat, dim=1), replica)
        return ShardedTensor.from_rank_offsets(
            name, self.weight, *offsets, replica_id=replica, prepend_axis_num=axis
        )


class Down(GroupedLinear):
    """Out of an expert."""

    cut_axis = 2

    def _sharded(self, name: str, offsets: Sequence[Any], replica: tuple[int, int, int], axis: int) -> Any:
        columns = (axis + 2, self._tensor_group.rank(), self._tensor_group.size())
        return ShardedTensor.from_rank_offsets(
            name, self.weight, *offsets, columns, replica_id=replica, prepend_axis_num=axis
        )


def expert_part(name: str, whole: Tensor, rank: int, size: int) -> Tensor:
    """What `rank` of `size` has of `whole`, the matrix of an expert that megatron calls `name`."""
    if size == 1:
        return whole
    if _GATE_UP in name:
        return torch.cat([half.chunk(size)[rank] for half in whole.chunk(2)])
    return whole.chunk(size, dim=1)[rank]


def whole_expert(name: str, parts: Sequence[Tensor]) -> Tensor:
    """The matrix whose `parts` the ranks have, in their order."""
    if len(parts) == 1:
        return parts[0]
    if _GATE_UP in name:
        halves = zip(*(part.chunk(2) for part in parts), strict=True)
        return torch.cat([rows for half in halves for rows in half])
    return torch.cat(list(parts), dim=1)


def whole_expert_shape(name: str, part: Sequence[int], size: int) -> tuple[int, int]:
    """The shape of a matrix of which each of `size` ranks has one of shape `part`."""
    rows, columns = part
    return (rows * size, columns) if _GATE_UP in name else (rows, columns * size)


def each(x: Tensor, weight: Tensor, counts: Sequence[int]) -> Tensor:
    """One multiplication an expert; one without tokens too, so that its gradient is zero and not missing."""
    parts = zip(x.split(list(counts)), weight.unbind(), strict=True)
    return torch.cat([functional.linear(rows, matrix) for rows, matrix in parts])


def grouped(x: Tensor, weight: Tensor, counts: Sequence[int]) -> Tensor:
    """All experts in one kernel: bf16 on a GPU."""
    ends = torch.tensor(counts, device=x.device).cumsum(0).to(torch.int32)
    return functional.grouped_mm(x, weight.transpose(1, 2), offs=ends)
