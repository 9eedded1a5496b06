"""AdamW that keeps what it needs itself: master weights and moments, in narrower types or in host memory.

The interface is that of TransformerEngine's FusedAdam with `master_weights`, by which megatron's distributed
optimizer reaches the states; so a checkpoint is the same, wherever and however they are kept. megatron's own
HybridDeviceOptimizer is not used: it changes the weights to make its states, and cannot read those of fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlcore_megatron.mcore.adam import Adam

MASTER, MOMENTS = "master_param", ("exp_avg", "exp_avg_sq")


class StateAdam(Adam):
    """Reads each gradient from `param.decoupled_grad`, where megatron leaves it. Masters are fp32.

    The arithmetic is fp32's whatever a moment's type is. Bit for bit that of `Adam` where all is fp32.
    """

    def __init__(
        self,
        params: Any,
        *,
        exp_avg_dtype: torch.dtype,
        exp_avg_sq_dtype: torch.dtype,
        master_weights: bool,
        use_decoupled_grad: bool,
        master_weight_dtype: torch.dtype,
        **settings: Any,
    ) -> None:
        assert master_weights
        assert use_decoupled_grad
        assert master_weight_dtype == torch.float32
        super().__init__(params, **settings)
        self._dtypes = {MASTER: torch.float32, "exp_avg": exp_avg_dtype, "exp_avg_sq": exp_avg_sq_dtype}
        self._hosted: set[Tensor] = set()
        self._copies = HostCopies(overlap=False, pin=False)
        self._pin = False

    def keep_on_host(self, fraction: float, *, overlap: bool, pin_params: bool, pin_grads: bool) -> None:
        """Keep and update the states of this share of the weights on the CPU. Before there are any.

        `overlap`: gradients, arithmetic and new weights travel at the same time, parameter by parameter.
        `pin_params`, `pin_grads`: whether host memory is pinned, on a GPU.
        """
        every = [param for group in self.param_groups for param in group["params"]]
        wanted, count = fraction * sum(param.numel() for param in every), 0
        for param in every:
            if count < wanted:
                self._hosted.add(param)
                count += param.numel()
        self._copies = HostCopies(overlap=overlap, pin=pin_grads)
        self._pin = pin_params

    def initialize_state(self, param: Tensor) -> None:
        """The master and two moments of 0."""
        is_hosted = param in self._hosted
        place = torch.device("cpu") if is_hosted else param.device
        pin = is_hosted and self._pin and param.is_cuda
        for name, dtype in self._dtypes.items():
            self.state[param][name] = torch.zeros(param.shape, dtype=dtype, device=place, pin_memory=pin)
        self.state[param][MASTER].copy_(param.detach())

    def get_unscaled_state(self, param: Tensor, name: str) -> Tensor:
        """As a checkpoint has it."""
        value: Tensor = self.state[param][name]
        return value.float()

    def set_scaled_state(self, param: Tensor, name: str, value: Tensor) -> None:
        """What a checkpoint has."""
        self.state[param][name].copy_(value)

    def load_state_dict(self, state_dict: Any) -> None:
        """The settings of the groups alone: torch would give each state the type and device of its weight."""
        kept = self.state
        super().load_state_dict({**state_dict, "state": {}})
        self.state = kept

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no closure
        """One update of each parameter that has a gradient."""
        work: list[tuple[dict[str, Any], list[Tensor], list[Tensor]]] = []
        for group in self.param_groups:
            group["step"] += 1
            params = [p for p in group["params"] if getattr(p, "decoupled_grad", None) is not None]
            work.append((group, *_divided(params, self._hosted)))
        self._copies.begin([p for _, _, hosted in work for p in hosted])
        for group, own, hosted in work:
            self._update(group, own, [p.decoupled_grad.float() for p in own])  # type: ignore[attr-defined]
            for param in own:
                param.copy_(self.state[param][MASTER])
            for param in hosted:
                self._update(group, [param], [self._copies.gradient(param)])
                self._copies.put_back(param, self.state[param][MASTER])
        self._copies.end()

    def _update(self, group: dict[str, Any], params: Sequence[Tensor], gradients: list[Tensor]) -> None:
        """New masters and moments of `params`; the gradients are fp32, where the states are."""
        if not params:
            return
        states = [self.state[param] for param in params]
        moments = [[state[name].float() for state in states] for name in MOMENTS]
        self.update(group, [state[MASTER] for state in states], gradients, *moments)
        for name, moment in zip(MOMENTS, moments, strict=True):
            for state, value in zip(states, moment, strict=True):
                if state[name] is not value:  # of a narrower type
                    state[name].copy_(value)


class HostCopies:
    """Gradients on their way to the host, and weights on their way back. On a CPU nothing is copied."""

    def __init__(self, *, overlap: bool, pin: bool) -> None:
        on_gpu = torch.cuda.is_available()
        self._streams = (torch.cuda.Stream(), torch.cuda.Stream()) if on_gpu and overlap else None
        self._pin = pin
        self._host: dict[Tensor, Tensor] = {}
        self._arrived: dict[Tensor, torch.cuda.Event] = {}

    def begin(self, params: Sequence[Tensor]) -> None:
        """Send all gradients on their way, where that can happen beside other work."""
        if self._streams is None:
            return
        down, _ = self._streams
        # Gradients must be complete before they leave, and weights be read before new ones come.
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(down):
            for param in params:
                self._fetch(param)
                self._arrived[param] = down.record_event()

    def gradient(self, param: Tensor) -> Tensor:
        """fp32, on the host."""
        grad: Tensor = param.decoupled_grad  # type: ignore[attr-defined]  # megatron's
        if not grad.is_cuda:
            return grad.float()
        if self._streams is None:
            self._fetch(param)
            torch.cuda.current_stream().synchronize()
        else:
            self._arrived.pop(param).synchronize()
        return self._host[param]

    def put_back(self, param: Tensor, master: Tensor) -> None:
        """The new weights, in their own type."""
        if self._streams is None:
            param.copy_(master)
            return
        with torch.cuda.stream(self._streams[1]):
            param.copy_(master, non_blocking=True)

    def end(self) -> None:
        """Let the device wait for the new weights."""
        if self._streams is not None:
            torch.cuda.current_stream().wait_stream(self._streams[1])

    def _fetch(self, param: Tensor) -> None:
        grad: Tensor = param.decoupled_grad  # type: ignore[attr-defined]  # megatron's
        if param not in self._host:
            self._host[param] = torch.empty(grad.shape, dtype=torch.float32, pin_memory=self._pin)
        self._host[param].copy_(grad, non_blocking=self._pin)


def _divided(params: Sequence[Tensor], hosted: set[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Those that are not in `hosted`, and those that are."""
    return [p for p in params if p not in hosted], [p for p in params if p in hosted]
