"""The experts that a rank holds: gated MLPs, each over the tokens that chose it.

Of an expert that is cut, each rank of its expert-tensor-parallel group has a run of the inner values: as many
rows of the gate's matrix and of the other that goes up, and as many columns of the one that goes down.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, get_expert_parallel_rng_tracker_name
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.shared_experts import SharedExpertMLP
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from rlcore import ConfigError
from rlcore_megatron.config import EXPERT_TENSOR
from rlcore_megatron.mcore.layers.adapter import Adapter, Place
from rlcore_megatron.mcore.layers.grouped import each, grouped
from rlcore_megatron.pipeline import flag
from rlcore_toolkit import current_device

_GATE_UP = ".linear_fc1."


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU(gate) ⊙ up."""
    return functional.silu(gate) * up


def clamped_glu(gate: Tensor, up: Tensor, *, alpha: float, limit: float) -> Tensor:
    """(up + 1) ⊙ gate ⊙ sigmoid(alpha · gate), after gate ≤ `limit` and |up| ≤ `limit` (gpt-oss)."""
    return cast(Tensor, _ClampedGlu.apply(gate, up, alpha, limit))  # type: ignore[no-untyped-call] # of torch


class _ClampedGlu(torch.autograd.Function):
    """Keeps its two inputs alone, which are parts of one tensor, where autograd would keep four more."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.alpha, ctx.limit = alpha, limit
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * gate * torch.sigmoid(alpha * gate)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None, None]:
        raw_gate, raw_up = ctx.saved_tensors
        gate, up = raw_gate.clamp(max=ctx.limit), raw_up.clamp(-ctx.limit, ctx.limit)
        share = torch.sigmoid(ctx.alpha * gate)
        # of gate · sigmoid(alpha · gate); a value that was clamped has no gradient
        steepness = share * (1 + ctx.alpha * gate * (1 - share))
        of_gate = slope * (up + 1) * steepness * (raw_gate <= ctx.limit)
        return of_gate, slope * gate * share * (raw_up.abs() <= ctx.limit), None, None


@dataclass(frozen=True, kw_only=True)
class ExpertForm:
    """`glu`: of the gate's values and the others. `biased`: whether both linear layers have biases."""

    glu: Callable[[Tensor, Tensor], Tensor] = swiglu
    biased: bool = False


class Experts(MegatronModule):  # type: ignore[misc] # megatron-core is untyped
    """What MoELayer calls between dispatch and combination, which sums what the parts of an expert give."""

    def __init__(
        self,
        num_local_experts: int,
        config: TransformerConfig,
        *,
        pg_collection: Any,
        form: ExpertForm,
    ) -> None:
        super().__init__(config=config)
        hidden, inner = config.hidden_size, config.moe_ffn_hidden_size // pg_collection.expt_tp.size()
        self.glu = form.glu
        self.linear_fc1 = GateUp(num_local_experts, hidden, 2 * inner, config, pg_collection, form.biased)
        self.linear_fc2 = Down(num_local_experts, inner, hidden, config, pg_collection, form.biased)

    def forward(self, hidden: Tensor, tokens_per_expert: Tensor, weights: Tensor) -> tuple[Tensor, None]:
        """hidden [T, H], sorted by expert; weights [T] of the router → ([T, H], no bias)."""
        # y = w · (W_down glu(W_gate x + b_gate, W_up x + b_up) + b_down), w the router's weight of the token
        counts = tokens_per_expert.tolist()
        rows = self.linear_fc1(hidden, counts)
        if (bias := self.linear_fc1.bias_of(counts)) is not None:
            rows = rows + bias
        inner = self.glu(*rows.chunk(2, dim=-1))
        # before the second layer: what is kept for backward is narrower
        out = self.linear_fc2((inner * weights[:, None]).to(hidden.dtype), counts)
        if (bias := self.linear_fc2.bias_of(counts)) is not None:
            out = out + (bias * weights[:, None]).to(out.dtype)
        return out, None


class SharedExperts(SharedExpertMLP):  # type: ignore[misc] # as above
    """The experts that every token passes through; Qwen3-Next's have a gate."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if self.gate_weight is not None:  # megatron makes it on the CPU, and moves the whole model later
            self.gate_weight.data = self.gate_weight.data.to(current_device())


class GroupedLinear(MegatronModule):  # type: ignore[misc] # as above
    """A linear layer an expert: `weight` [experts, outputs, inputs].

    `bias` [experts, outputs], or None. Of an expert whose parts give sums, each part has a run of the bias.
    """

    cut_axis: ClassVar[int]
    """The axis of `weight` at which experts are cut."""

    def __init__(
        self,
        experts: int,
        inputs: int,
        outputs: int,
        config: TransformerConfig,
        pg_collection: Any,
        biased: bool,
    ) -> None:
        super().__init__(config=config)
        self.adapter: Adapter | None = None
        self._expert_group, self._data_group = pg_collection.ep, pg_collection.expt_dp
        self._tensor_group = pg_collection.expt_tp
        weight = torch.empty(experts, outputs, inputs, dtype=config.params_dtype, device=current_device())
        if config.perform_initialization:
            with get_cuda_rng_tracker().fork(get_expert_parallel_rng_tracker_name()):
                for expert in weight:
                    config.init_method(expert)
        self.weight = self._parameter(weight, self.cut_axis)
        self.bias: torch.nn.Parameter | None = None
        if biased:
            zeros = torch.zeros(
                experts, self._bias_size(outputs), dtype=weight.dtype, device=current_device()
            )
            self.bias = self._parameter(zeros, 1)

    @staticmethod
    def _parameter(values: Tensor, cut_axis: int) -> torch.nn.Parameter:
        # megatron's marks: its gradient is summed over the ranks that hold the same experts, and it is no
        # copy of a tensor-parallel peer's
        parameter = torch.nn.Parameter(values)
        parameter.allreduce = False  # type: ignore[attr-defined]
        set_tensor_model_parallel_attributes(parameter, is_parallel=True, dim=cut_axis, stride=1)
        return parameter

    def _bias_size(self, outputs: int) -> int:
        """How many of an expert's biases this rank has."""
        return outputs

    def bias_of(self, counts: Sequence[int]) -> Tensor | None:
        """[T, outputs] for `counts[e]` rows of each expert; None where the layer has no bias."""
        if self.bias is None:
            return None
        experts = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).to(self.bias.device)
        return functional.embedding(experts, self.bias)

    def forward(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """x [T, inputs], `counts[e]` rows of each expert → [T, outputs]."""
        by_kernel = x.is_cuda and x.dtype == torch.bfloat16
        out = (grouped if by_kernel else each)(x, self.weight, counts)
        return out if self.adapter is None else self.adapter.added(out, x, counts)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Sequence[Any] = (), metadata: Any = None
    ) -> dict[str, Any]:
        """One tensor of all experts of the layer: of which this rank has a run, or parts of a run."""
        axis = len(sharded_offsets)
        offsets = (*sharded_offsets, (axis, self._expert_group.rank(), self._expert_group.size()))
        replica = (0, 0, self._data_group.rank())
        return {
            f"{prefix}{name}": self._sharded(f"{prefix}{name}", tensor, offsets, replica, axis)
            for name, tensor in self.named_parameters()
        }

    def _sharded(
        self, name: str, tensor: Tensor, offsets: Sequence[Any], replica: tuple[int, int, int], axis: int
    ) -> Any:
        """`tensor`: weight or bias. `offsets` say which experts; `axis`: their own in the whole tensor."""
        raise NotImplementedError


class GateUp(GroupedLinear):
    """Into an expert: the rows of the gate, and those of the other matrix behind them."""

    cut_axis = 1
    place = Place.INTO_EXPERT

    def _sharded(
        self, name: str, tensor: Tensor, offsets: Sequence[Any], replica: tuple[int, int, int], axis: int
    ) -> Any:
        rank, size = self._tensor_group.rank(), self._tensor_group.size()

        # A rank has [gate_r; up_r] of [gate_0 … gate_n; up_0 … up_n]: pieces r and n + r of 2n, not one run.
        def halves(key: str, tensor: Tensor, replica: Any, _: Any) -> list[ShardedTensor]:
            settings = {"replica_id": replica, "prepend_axis_num": axis}
            return [
                ShardedTensor.from_rank_offsets(key, half, *offsets, (axis + 1, place, 2 * size), **settings)
                for half, place in zip(tensor.chunk(2, dim=1), (rank, size + rank), strict=True)
            ]

        if size > 1:
            return ShardedTensorFactory(name, tensor, halves, partial(torch.cat, dim=1), replica)
        return ShardedTensor.from_rank_offsets(
            name, tensor, *offsets, replica_id=replica, prepend_axis_num=axis
        )


class Down(GroupedLinear):
    """Out of an expert."""

    cut_axis = 2
    place = Place.OUT_OF_EXPERT

    def _bias_size(self, outputs: int) -> int:
        parts: int = self._tensor_group.size()
        if outputs % parts:
            raise ConfigError(f"{flag(EXPERT_TENSOR)}: found {parts}, expected a divisor of {outputs}.")
        return outputs // parts

    def bias_of(self, counts: Sequence[int]) -> Tensor | None:
        """This rank's run of the bias, and zeros in the places of the others."""
        run = super().bias_of(counts)
        if run is None:
            return None
        before, size = self._tensor_group.rank() * run.shape[1], self.weight.shape[1]
        return functional.pad(run, (before, size - before - run.shape[1]))

    def _sharded(
        self, name: str, tensor: Tensor, offsets: Sequence[Any], replica: tuple[int, int, int], axis: int
    ) -> Any:
        columns = (axis + tensor.ndim - 1, self._tensor_group.rank(), self._tensor_group.size())
        return ShardedTensor.from_rank_offsets(
            name, tensor, *offsets, columns, replica_id=replica, prepend_axis_num=axis
        )


def expert_part(name: str, whole: Tensor, rank: int, size: int) -> Tensor:
    """What `rank` of `size` has of `whole`, the matrix or bias of an expert that megatron calls `name`."""
    if size == 1:
        return whole
    if _GATE_UP in name:
        return torch.cat([half.chunk(size)[rank] for half in whole.chunk(2)])
    return whole.chunk(size, dim=-1)[rank]


def whole_expert(name: str, parts: Sequence[Tensor]) -> Tensor:
    """The matrix or bias whose `parts` the ranks have, in their order."""
    if len(parts) == 1:
        return parts[0]
    if _GATE_UP in name:
        halves = zip(*(part.chunk(2) for part in parts), strict=True)
        return torch.cat([rows for half in halves for rows in half])
    return torch.cat(list(parts), dim=-1)


def whole_expert_shape(name: str, part: Sequence[int], size: int) -> tuple[int, ...]:
    """The shape of a matrix or bias of which each of `size` ranks has one of shape `part`."""
    return (part[0] * size, *part[1:]) if _GATE_UP in name else (*part[:-1], part[-1] * size)
