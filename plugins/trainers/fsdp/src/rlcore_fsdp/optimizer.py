"""AdamW on the parts of the parameters that a rank holds, in fp32, and the norm of all gradients."""

import math
from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlcore import OptimizerSettings
from rlcore_fsdp.shards import local
from rlcore_toolkit import rank_sums

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What AdamW keeps of each parameter."""


class Optimizer:
    """Decoupled weight decay takes matrices alone; a parameter without a gradient has one of zeros.

    https://arxiv.org/abs/1711.05101
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings, *, on_host: bool
    ) -> None:
        """`parameters`: those that train. `on_host`: state and step are in host memory."""
        self._parameters, self._on_host = dict(parameters), on_host
        held = {name: local(one).detach() for name, one in parameters.items()}
        self._masters = {n: one.to("cpu", copy=True) if on_host else one for n, one in held.items()}
        matrices = [self._masters[name] for name, one in parameters.items() if one.dim() > 1]
        others = [self._masters[name] for name, one in parameters.items() if one.dim() < 2]
        self._adam = torch.optim.AdamW(
            [
                {"params": group, "weight_decay": decay}
                for group, decay in ((matrices, settings.weight_decay), (others, 0.0))
                if group
            ],
            lr=settings.lr,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_eps,
            fused=True,
        )
        self._clip = settings.clip_grad
        for master in self._masters.values():
            zeros = {name: torch.zeros_like(master) for name in MOMENTS}
            self._adam.state[master] = {"step": torch.zeros((), device=master.device), **zeros}

    def forget_gradients(self) -> None:
        """Before the micro-batches of a step."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def norm(self) -> float:
        """The norm of the gradient of all ranks, the same on each. Collective."""
        squares = torch.zeros((), dtype=torch.float64)
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if dist.get_world_size() > 1 and not isinstance(parameter, DTensor):
                dist.all_reduce(parameter.grad)
                if dist.get_rank():  # every rank has it, and one counts it
                    continue
            squares += torch.linalg.vector_norm(local(parameter.grad)).double().cpu().square()
        return math.sqrt(rank_sums([{"": squares}], squares.device)[""])

    def step(self, lr: float, norm: float) -> None:
        """An update by gradients whose norm is `norm`, clipped."""
        scale = min(1.0, self._clip / (norm + 1e-6)) if self._clip else 1.0
        for name, master in self._masters.items():
            gradient = self._parameters[name].grad
            assert gradient is not None, "`norm` comes first"
            mine = local(gradient)
            if scale < 1.0:
                mine.mul_(scale)
            master.grad = mine.to(master)
        for group in self._adam.param_groups:
            group["lr"] = lr
        self._adam.step()
        for name, master in self._masters.items():
            master.grad = None
            if self._on_host:
                local(self._parameters[name]).detach().copy_(master)

    def gradients(self) -> Iterable[Tensor]:
        """Those of the last step."""
        return [local(one.grad) for one in self._parameters.values() if one.grad is not None]

    def moments(self) -> dict[str, Tensor]:
        """`KIND/NAME` → each moment, as this rank holds it."""
        return {
            f"{kind}/{name}": self._adam.state[master][kind]
            for name, master in self._masters.items()
            for kind in MOMENTS
        }

    def went(self, steps: int) -> None:
        """The weights and moments that were loaded are those after `steps`."""
        for name, master in self._masters.items():
            self._adam.state[master]["step"].fill_(steps)
            if self._on_host:
                master.copy_(local(self._parameters[name]).detach())
