"""AdamW without TransformerEngine or apex."""

from __future__ import annotations

from collections.abc import Callable
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
