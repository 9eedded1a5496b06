"""AdamW under megatron-core's optimizer wrappers, without TransformerEngine or apex."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import megatron.core.optimizer as megatron_optimizer
import megatron.core.optimizer.distrib_optimizer as distrib_optimizer
import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import ChainedOptimizer, OptimizerConfig
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

from rlcore import ConfigError, OptimizerSettings

__all__ = [
    "Adam",
    "apply_gradients",
    "build_optimizer",
    "clip_gradients",
    "wrap_for_gradients",
    "zero_gradients",
]


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
            step = torch.tensor(float(group["step"]), device=params[0].device)
            self._fused(
                params,
                [p.grad for p in params],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
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


def wrap_for_gradients(
    chunks: Sequence[MegatronModule], config: TransformerConfig, passed: Mapping[str, Any]
) -> list[DistributedDataParallel]:
    """Each chunk with fp32 gradient buffers that are summed, not averaged, over data-parallel ranks.

    `passed`: fields of DistributedDataParallelConfig that the user set.
    """
    config.calculate_per_token_loss = True  # megatron's switch for "do not divide": read by DDP and schedules
    ours = {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True}
    ddp_config = DistributedDataParallelConfig(**{**ours, **passed})
    wrapped = [
        DistributedDataParallel(config, dataclasses.replace(ddp_config), chunk, disable_bucketing=index > 0)
        for index, chunk in enumerate(chunks)
    ]
    if ddp_config.overlap_grad_reduce:
        no_sync = [chunk.no_sync for chunk in wrapped]
        config.no_sync_func = no_sync[0] if len(no_sync) == 1 else no_sync
    return wrapped


def build_optimizer(
    chunks: Sequence[DistributedDataParallel],
    settings: OptimizerSettings,
    config: TransformerConfig,
    passed: Mapping[str, Any],
) -> ChainedOptimizer:
    """megatron's optimizer over `chunks`, its state allocated, so that it can be saved before its first step.

    `passed`: fields of OptimizerConfig that the user set; they win over `settings`.
    """
    if passed.get("optimizer", "adam") != "adam":
        raise ConfigError(f"--megatron.optimizer {passed['optimizer']} is not supported: only adam is.")
    if not distrib_optimizer.HAVE_APEX_OR_TE:
        _use_own_adam()
    ours = {
        "lr": settings.lr,
        "min_lr": settings.min_lr,
        "weight_decay": settings.weight_decay,
        "clip_grad": settings.clip_grad,
        "adam_beta1": settings.adam_beta1,
        "adam_beta2": settings.adam_beta2,
        "adam_eps": settings.adam_eps,
    }
    fixed = {
        "bf16": config.bf16,
        "params_dtype": config.params_dtype,
        "use_distributed_optimizer": chunks[0].ddp_config.use_distributed_optimizer,
        "overlap_param_gather": chunks[0].ddp_config.overlap_param_gather,
    }
    optimizer_config = OptimizerConfig(**{**ours, **passed, **fixed})
    optimizer = megatron_optimizer.get_megatron_optimizer(
        optimizer_config, list(chunks), use_gloo_process_groups=False
    )
    assert isinstance(optimizer, ChainedOptimizer)
    for part in optimizer.chained_optimizers:
        if part.init_state_fn is not None and part.optimizer is not None:
            part.init_state_fn(part.optimizer, part.config)
    return optimizer


def zero_gradients(chunks: Sequence[DistributedDataParallel]) -> None:
    """Forget all gradients: the buffers, and what megatron's wrappers hang on the parameters."""
    for chunk in chunks:
        chunk.zero_grad_buffer()
        for param in chunk.params_with_grad:
            param.grad = None


def apply_gradients(optimizer: ChainedOptimizer, lr: float) -> None:
    """Update the weights from gradients that `optimizer.prepare_grads()` and `clip_gradients` made ready."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        group["weight_decay"] = optimizer.config.weight_decay * group["wd_mult"]  # 0 for biases and norms
    optimizer.step_with_ready_grads()
    for part in optimizer.chained_optimizers:
        if part.config.overlap_param_gather:
            # the weights are published between steps: they must be whole before the next forward
            for chunk in part.model_chunks:
                chunk.start_param_sync(force_sync=True)


def clip_gradients(optimizer: ChainedOptimizer, norm: float) -> None:
    """Scale all gradients so that their global norm, now `norm`, is at most the configured one."""
    for part in optimizer.chained_optimizers:
        parameters = part.get_parameters()
        if parameters and part.config.clip_grad > 0.0:
            clip_grad_by_total_norm_fp32(parameters, part.config.clip_grad, norm)


def _use_own_adam() -> None:
    """megatron picks TransformerEngine's Adam at import, or apex's, or torch's; ours replaces the last."""
    megatron_optimizer.Adam, megatron_optimizer.USING_PYTORCH_OPTIMIZER = Adam, False
    distrib_optimizer.Adam = Adam
    # these two say where `step` is kept: in the parameter groups
    distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_APEX_OPTIMIZER = True
