"""AdamW that keeps what it needs itself: master weights and moments, in narrower types or in host memory.

The interface is that of TransformerEngine's FusedAdam with `master_weights`, by which megatron's distributed
optimizer reaches the states; so a checkpoint is the same, wherever and however they are kept. megatron's own
HybridDeviceOptimizer is not used: it changes the weights to make its states, and cannot read those of fp32.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Adam(torch.optim.Optimizer):
    """AdamW with the state layout of TransformerEngine's FusedAdam: `step` lives in the parameter group.

    megatron's distributed optimizer can checkpoint this layout at any time, and torch's own only once it has
    stepped. One fused kernel a group.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "step": 0}
        self._fused = torch._fused_adamw_ if adam_w_mode else torch._fused_adam_
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no closure
        """One update of each parameter that has a gradient."""
        for group in self.param_groups:
            group["step"] += 1
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            states = [self.state[p] for p in params]
            for param, state in zip(params, states, strict=True):
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(param), torch.zeros_like(param)
            moments = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
            self.update(group, params, [p.grad for p in params], *moments)

    def update(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        gradients: list[Tensor],
        first: list[Tensor],
        second: list[Tensor],
    ) -> None:
        """`params` and their moments, in place, with the settings and the step of `group`."""
        # AdamW: m ← β1 m + (1-β1) g, v ← β2 v + (1-β2) g², θ ← θ - lr (m̂ / (√v̂ + ε) + wd θ)
        step = torch.tensor(float(group["step"]), device=params[0].device)
        self._fused(
            params,
            gradients,
            first,
            second,
            [],
            [step] * len(params),
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )


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
        # whole parameters in megatron's order, until they make up the share: a state is never split
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
        """A state in fp32, the type that a checkpoint has."""
        value: Tensor = self.state[param][name]
        return value.float()

    def set_scaled_state(self, param: Tensor, name: str, value: Tensor) -> None:
        """What a checkpoint has."""
        self.state[param][name].copy_(value)

    def load_state_dict(self, state_dict: Any) -> None:
        """The settings of the groups alone: torch would give each state the type and device of its weight."""
        states = self.state
        super().load_state_dict({**state_dict, "state": {}})
        self.state = states

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no closure
        """One update of each parameter that has a gradient."""
        work: list[tuple[dict[str, Any], list[Tensor], list[Tensor]]] = []
        for group in self.param_groups:
            group["step"] += 1
            params = [p for p in group["params"] if getattr(p, "decoupled_grad", None) is not None]
            hosted = [p for p in params if p in self._hosted]
            work.append((group, [p for p in params if p not in self._hosted], hosted))
        self._copies.begin([p for _, _, hosted in work for p in hosted])
        for group, local, hosted in work:
            self._update(group, local, [p.decoupled_grad.float() for p in local])  # type: ignore[attr-defined]
            for param in local:
                param.copy_(self.state[param][MASTER])
            # one by one: while one is computed, the gradient of the next comes and the last weights go
            for param in hosted:
                self._update(group, [param], [self._copies.gradient(param)])
                self._copies.put_back(param, self.state[param][MASTER])
        self._copies.end()

    def _update(self, group: dict[str, Any], params: Sequence[Tensor], gradients: list[Tensor]) -> None:
        """New masters and moments of `params`; the gradients are fp32, where the states are."""
        if not params:
            return
        states = [self.state[param] for param in params]
        # `float()` copies a narrower moment, and gives an fp32 one itself, which changes in place
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
