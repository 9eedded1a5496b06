"""The experts that a rank holds: gated MLPs, each over the tokens that chose it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, get_expert_parallel_rng_tracker_name
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore.imports import device


class Experts(MegatronModule):  # type: ignore[misc] # megatron-core is untyped
    """What MoELayer calls between dispatch and combination. No expert is divided between ranks."""

    def __init__(self, num_local_experts: int, config: TransformerConfig, *, pg_collection: Any) -> None:
        super().__init__(config=config)
        hidden, inner = config.hidden_size, config.moe_ffn_hidden_size
        self.linear_fc1 = GroupedLinear(num_local_experts, hidden, 2 * inner, config, pg_collection)
        self.linear_fc2 = GroupedLinear(num_local_experts, inner, hidden, config, pg_collection)

    def forward(self, hidden: Tensor, tokens_per_expert: Tensor, weights: Tensor) -> tuple[Tensor, None]:
        """hidden [T, H], sorted by expert; weights [T] of the router → ([T, H], no bias)."""
        counts = tokens_per_expert.tolist()
        gate, up = self.linear_fc1(hidden, counts).chunk(2, dim=-1)
        inner = functional.silu(gate) * up
        # before the second layer: what is kept for backward is narrower
        return self.linear_fc2((inner * weights[:, None]).to(hidden.dtype), counts), None


class GroupedLinear(MegatronModule):  # type: ignore[misc] # as above
    """A linear layer an expert, without bias: `weight` [experts, outputs, inputs]."""

    def __init__(
        self, experts: int, inputs: int, outputs: int, config: TransformerConfig, pg_collection: Any
    ) -> None:
        super().__init__(config=config)
        self._expert_group, self._data_group = pg_collection.ep, pg_collection.expt_dp
        weight = torch.empty(experts, outputs, inputs, dtype=config.params_dtype, device=device())
        if config.perform_initialization:
            with get_cuda_rng_tracker().fork(get_expert_parallel_rng_tracker_name()):
                for one in weight:
                    config.init_method(one)
        self.weight = torch.nn.Parameter(weight)
        # megatron's marks: its gradient is summed over the ranks that hold the same experts, and it is no
        # copy of a tensor-parallel peer's
        self.weight.allreduce = False  # type: ignore[attr-defined]
        set_tensor_model_parallel_attributes(self.weight, is_parallel=True, dim=0, stride=1)

    def forward(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """x [T, inputs], `counts[e]` rows of each expert → [T, outputs]."""
        if x.is_cuda and x.dtype == torch.bfloat16:
            return grouped(x, self.weight, counts)
        return each(x, self.weight, counts)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Sequence[Any] = (), metadata: Any = None
    ) -> dict[str, ShardedTensor]:
        """One tensor of all experts of the layer, of which this rank has a run."""
        axis = len(sharded_offsets)
        place = (axis, self._expert_group.rank(), self._expert_group.size())
        name = f"{prefix}weight"
        shard = ShardedTensor.from_rank_offsets(
            name,
            self.weight,
            *sharded_offsets,
            place,
            replica_id=(0, 0, self._data_group.rank()),
            prepend_axis_num=axis,
        )
        return {name: shard}


def each(x: Tensor, weight: Tensor, counts: Sequence[int]) -> Tensor:
    """One multiplication an expert; one without tokens too, so that its gradient is zero and not missing."""
    parts = zip(x.split(list(counts)), weight.unbind(), strict=True)
    return torch.cat([functional.linear(rows, matrix) for rows, matrix in parts])


def grouped(x: Tensor, weight: Tensor, counts: Sequence[int]) -> Tensor:
    """All experts in one kernel: bf16 on a GPU."""
    ends = torch.tensor(counts, device=x.device).cumsum(0).to(torch.int32)
    return functional.grouped_mm(x, weight.transpose(1, 2), offs=ends)
