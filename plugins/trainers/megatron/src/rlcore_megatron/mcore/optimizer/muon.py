"""Muon as megatron-core has it, without the package that megatron's own class asks for.

https://kellerjordan.github.io/posts/muon; the scales are those of https://arxiv.org/abs/2502.16982.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from rlcore_megatron.mcore import parallel

QUINTIC = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
"""The polynomials of the steps, one after another: megatron's choice, of modded-nanogpt."""
SCALES: Mapping[str, Callable[[int, int], float]] = {
    "spectral": lambda rows, columns: max(rows, columns) ** 0.5,
    "unit_rms_norm": lambda rows, columns: (rows / columns) ** 0.5,
    "shape_scaling": lambda rows, columns: max(1.0, rows / columns) ** 0.5,
}
MOMENTUM = "momentum_buffer"
_EPSILON = 1e-7


@dataclass(frozen=True, kw_only=True)
class MuonRule:
    """megatron's settings of the same names.

    `dtype`: of the steps. `qkv`: rows of a group's queries, of their gates if there are some, keys, values.
    """

    nesterov: bool
    steps: int
    scale: str
    factor: float
    dtype: torch.dtype
    qkv: tuple[int, ...] | None

    @staticmethod
    def of(config: OptimizerConfig, model: Any) -> MuonRule:
        """Reads megatron's two configs."""
        size = model.kv_channels
        queries = model.num_attention_heads // model.num_query_groups * size
        gates = (queries,) if model.attention_output_gate else ()
        return MuonRule(
            nesterov=config.muon_use_nesterov,
            steps=config.muon_num_ns_steps,
            scale=config.muon_scale_mode,
            factor=config.muon_extra_scale_factor,
            dtype=torch.bfloat16 if config.muon_fp32_matmul_prec == "medium" else torch.float32,
            qkv=(queries, *gates, size, size) if config.muon_split_qkv else None,
        )

    def update(self, towards: Tensor, *, is_qkv: bool) -> Tensor:
        """[…, rows, columns] of whole matrices → the same, orthogonal and scaled."""
        if self.qkv is None or not is_qkv:
            return self._orthogonal(towards)
        groups = towards.view(-1, sum(self.qkv), towards.shape[-1])
        parts = [
            self._orthogonal(part.flatten(0, 1)).view_as(part) for part in groups.split(list(self.qkv), dim=1)
        ]
        return torch.cat(parts, dim=1).view_as(towards)

    def _orthogonal(self, towards: Tensor) -> Tensor:
        scale = SCALES[self.scale](*towards.shape[-2:]) * self.factor
        return orthogonal(towards, self.steps, self.dtype) * scale


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal, with decoupled weight decay. Each matrix is made whole for it.

    So the update is the same however ranks share the model, to the rounding of `MuonRule.dtype`.
    """

    def __init__(
        self, params: Any, *, rule: MuonRule, lr: float, weight_decay: float, momentum: float
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._rule = rule

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no closure
        """One update of each parameter that has a gradient."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                towards = self.state[param][MOMENTUM].lerp_(param.grad, 1 - group["momentum"])
                if self._rule.nesterov:
                    towards = param.grad.lerp(towards, group["momentum"])
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.sub_(self._update(param, towards), alpha=group["lr"])

    def _update(self, param: Tensor, towards: Tensor) -> Tensor:
        """The update of this rank's part of the matrices, of the shape of `param`."""
        # orthogonal(G) is of the singular vectors of all of G: no part of a matrix can be updated alone
        is_qkv = getattr(param, "is_qkv", False)
        axis: int = getattr(param, "partition_dim", -1)
        if axis < 0:
            return self._rule.update(towards, is_qkv=is_qkv)
        is_expert = getattr(param, "expert_tp", False)
        group = parallel.expert_tensor_group() if is_expert else parallel.tensor_group()
        parts = [torch.empty_like(towards) for _ in range(group.size())]
        dist.all_gather(parts, towards.contiguous(), group=group)
        # rows of gates and others alternate then, in runs; in whatever order they go in, they come out
        update = self._rule.update(torch.cat(parts, dim=axis), is_qkv=is_qkv)
        mine: Tensor = update.chunk(group.size(), dim=axis)[group.rank()]
        return mine


def orthogonal(matrices: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """[…, rows, columns] → about U V^T of each U S V^T.

    5 `steps` bring singular values of 0.005 of the norm and more to between 0.97 and 1.12.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(_EPSILON)).to(dtype)
    for a, b, c in islice(cycle(QUINTIC), steps):
        # x ← a x + b (x xᵀ) x + c (x xᵀ)² x: each singular value s becomes a s + b s³ + c s⁵
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.to(matrices.dtype)
    return result.mT if is_tall else result


def mark_matrices(chunks: Sequence[MegatronModule]) -> list[torch.nn.Parameter]:
    """Those that Muon trains: of what is trained, all but embeddings, heads, norms and biases.

    Their marks are megatron's, which its wrappers copy to fp32 masters.
    """
    matrices = []
    for chunk in chunks:
        for name, param in chunk.named_parameters():
            is_head = getattr(param, "is_embedding_or_output_parameter", False) or "output_layer." in name
            if not param.requires_grad or is_head or param.ndim < 2 or name.endswith(".bias"):
                continue
            param.expert_tp = param.ndim == 3
            param.is_qkv = name.endswith("linear_qkv.weight")
            matrices.append(param)
    return matrices
