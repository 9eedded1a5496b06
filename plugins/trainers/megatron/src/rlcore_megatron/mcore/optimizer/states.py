"""The states of megatron's distributed optimizer, parameter by parameter, for a checkpoint."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_STATES = ("param", "exp_avg", "exp_avg_sq")
"""megatron's names of the master weights and Adam's moments."""


class _Slices(dict[int, Tensor]):
    """A flat buffer as its parts, each found by where it begins: it is never in memory as a whole."""

    def __getitem__(self, place: Any) -> Tensor:
        return super().__getitem__(place.start)


class WholeStates:
    """Takes the place of `get_parameter_state_dp_zero` of `optimizer`, megatron's `DistributedOptimizer`.

    megatron's copies each state three times on its way to a checkpoint. Here a state that this rank has alone
    is that state itself, to be copied before the next step. Others are gathered, one kind at a time, and only
    the first of the ranks, which writes them, keeps them; the others get their shapes.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._empty = optimizer, optimizer.get_parameter_state_dp_zero

    @torch.no_grad()
    def __call__(self, *args: Any, empty_data: bool = False, **known: Any) -> Any:
        """For each buffer and type of its weights: state → what begins where. Collective."""
        if empty_data:
            return self._empty(*args, empty_data=empty_data, **known)
        return {
            number: {kind: {name: _Slices(self._of(number, buckets, name)) for name in _STATES}}
            for number, ranges in enumerate(self._optimizer.gbuf_ranges)
            for kind, buckets in ranges.items()
        }

    def _of(self, number: int, buckets: Any, name: str) -> Iterator[tuple[int, Tensor]]:
        buffer, group = self._optimizer.buffers[number], self._optimizer.data_parallel_group
        for bucket, ranges in zip(buffer.buckets, buckets, strict=True):
            own = [
                (param, self._optimizer._get_main_param_and_optimizer_states(param)[name].detach(), part)
                for param, part in ranges["param_map"].items()
            ]
            if group.size() == 1:
                yield from ((buffer.param_index_map[param][0], state) for param, state, _ in own)
                continue
            share = torch.zeros(bucket.grad_data.numel() // group.size(), device=bucket.grad_data.device)
            for _, state, part in own:
                share[part["gbuf_local"].start : part["gbuf_local"].end] = state
            whole = share.new_empty(bucket.grad_data.numel())
            dist.all_gather_into_tensor(whole, share, group=group)
            place = "cpu" if group.rank() == 0 else "meta"
            for param in bucket.params_list:
                start, end, _ = buffer.param_index_map[param]
                yield start, whole[start - bucket.offset : end - bucket.offset].to(place, copy=True)
