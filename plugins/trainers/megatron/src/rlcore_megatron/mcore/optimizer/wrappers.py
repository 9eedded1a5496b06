"""megatron-core's optimizers and their wrappers, without TransformerEngine or apex."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import megatron.core.optimizer as megatron_optimizer
import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import (
    ChainedOptimizer,
    OptimizerConfig,
    distrib_optimizer,
    get_megatron_optimizer,
)
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

from rlcore import OptimizerSettings, torch_dtype
from rlcore_megatron.mcore.optimizer.adam import Adam, StateAdam
from rlcore_megatron.mcore.optimizer.muon import MOMENTUM, Muon, MuonRule, mark_matrices
from rlcore_megatron.mcore.optimizer.states import WholeStates

OFFLOAD, PRECISION = "optimizer_cpu_offload", "use_precision_aware_optimizer"
_OF_STATES = frozenset(
    (
        *(OFFLOAD, PRECISION, "exp_avg_dtype", "exp_avg_sq_dtype", "optimizer_offload_fraction"),
        *("overlap_cpu_optimizer_d2h_h2d", "pin_cpu_params", "pin_cpu_grads"),
    )
)
"""What `StateAdam` takes, and megatron's own classes don't."""

__all__ = ["apply_gradients", "build_optimizer", "clip_gradients", "wrap_for_gradients", "zero_gradients"]


def wrap_for_gradients(
    chunks: Sequence[MegatronModule], config: TransformerConfig, passed: Mapping[str, Any]
) -> list[DistributedDataParallel]:
    """Each chunk with fp32 gradient buffers that are summed, not averaged, over data-parallel ranks.

    `passed`: fields of DistributedDataParallelConfig that the user set.
    """
    config.calculate_per_token_loss = True  # megatron's switch for "do not divide": read by DDP and schedules
    ours = {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True}
    ddp_config = DistributedDataParallelConfig(**{**ours, **passed})
    # As in megatron itself: the sums of later chunks run beside computing in any case.
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
    names = ("lr", "min_lr", "weight_decay", "clip_grad", "adam_beta1", "adam_beta2", "adam_eps")
    ours = {name: getattr(settings, name) for name in names}
    fixed = {
        "bf16": config.bf16,
        "params_dtype": config.params_dtype,
        "use_distributed_optimizer": chunks[0].ddp_config.use_distributed_optimizer,
        "overlap_param_gather": chunks[0].ddp_config.overlap_param_gather,
    }
    plain = {name: value for name, value in passed.items() if name not in _OF_STATES}
    optimizer_config = OptimizerConfig(**{**ours, **plain, **fixed})
    owns_states = bool(passed.get(OFFLOAD) or passed.get(PRECISION))
    if owns_states:
        # set afterwards: the class itself asks for TransformerEngine
        optimizer_config.use_precision_aware_optimizer = True
        optimizer_config.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = True
        optimizer_config.store_param_remainders = False
        for name in ("exp_avg_dtype", "exp_avg_sq_dtype"):
            setattr(optimizer_config, name, torch_dtype(passed.get(name, "fp32")))
    with _adam(StateAdam if owns_states else Adam):
        if optimizer_config.optimizer == "muon":
            optimizer = _with_muon(optimizer_config, list(chunks), config)
        else:
            optimizer = get_megatron_optimizer(optimizer_config, list(chunks), use_gloo_process_groups=False)
    assert isinstance(optimizer, ChainedOptimizer)
    for part in optimizer.chained_optimizers:
        _allocate(part, passed)
    return optimizer


def _with_muon(
    config: OptimizerConfig, chunks: list[DistributedDataParallel], model: TransformerConfig
) -> ChainedOptimizer:
    """Muon for matrices, Adam for the rest, each where megatron makes an optimizer of what is trained."""
    rule, matrices = MuonRule.of(config, model), mark_matrices(chunks)
    others = [param for chunk in chunks for param in chunk.parameters() if param.requires_grad]
    others = [param for param in others if not any(param is matrix for matrix in matrices)]
    with _frozen(others), _replaced("SGD", partial(Muon, rule=rule)):
        of_matrices = dataclasses.replace(config, optimizer="sgd", sgd_momentum=config.muon_momentum)
        first = get_megatron_optimizer(of_matrices, chunks, use_gloo_process_groups=False)
    with _frozen(matrices):
        of_others = dataclasses.replace(config, optimizer="adam")
        second = get_megatron_optimizer(of_others, chunks, use_gloo_process_groups=False)
    parts = [*first.chained_optimizers, *second.chained_optimizers]
    for part in parts:
        part.config = config  # megatron asks that they share one
    return ChainedOptimizer(parts)


@contextmanager
def _frozen(params: Sequence[torch.nn.Parameter]) -> Iterator[None]:
    for param in params:
        param.requires_grad = False
    try:
        yield
    finally:
        for param in params:
            param.requires_grad = True


@contextmanager
def _replaced(name: str, own: Any) -> Iterator[None]:
    """Let megatron make `own` where it would make its optimizer `name`."""
    kept = getattr(megatron_optimizer, name)
    setattr(megatron_optimizer, name, own)
    try:
        yield
    finally:
        setattr(megatron_optimizer, name, kept)


def _allocate(part: Any, passed: Mapping[str, Any]) -> None:
    """The states of one of megatron's optimizers."""
    if part.optimizer is None:
        return
    if passed.get(OFFLOAD):
        part.optimizer.keep_on_host(
            passed.get("optimizer_offload_fraction", 1.0),
            overlap=passed.get("overlap_cpu_optimizer_d2h_h2d", False),
            pin_params=passed.get("pin_cpu_params", True),
            pin_grads=passed.get("pin_cpu_grads", True),
        )
    if part.init_state_fn is None:  # megatron has none for SGD, nor for what stands in its place
        part.init_state_fn = _momentum
    part.init_state_fn(part.optimizer, part.config)
    if isinstance(part, DistributedOptimizer):
        part.get_parameter_state_dp_zero = WholeStates(part)


def _momentum(optimizer: torch.optim.Optimizer, _: OptimizerConfig | None = None) -> None:
    """Momenta of 0, of which the first step makes the gradient, as it does of none."""
    for group in optimizer.param_groups:
        for param in group["params"] if group["momentum"] else ():
            optimizer.state[param].setdefault(MOMENTUM, torch.zeros_like(param))


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
            decoupled = part.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8
            clip_grad_by_total_norm_fp32(parameters, part.config.clip_grad, norm, decoupled)


@contextmanager
def _adam(own: type[Adam]) -> Iterator[None]:
    """Let megatron make `own` where it would make TransformerEngine's Adam, or apex's, or torch's."""
    # these say where `step` is kept: in the parameter groups
    distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_APEX_OPTIMIZER = True
    megatron_optimizer.USING_PYTORCH_OPTIMIZER = False
    distrib_optimizer.Adam = Adam
    megatron_optimizer.Adam = own
    version_check = megatron_optimizer.is_te_min_version
    megatron_optimizer.is_te_min_version = lambda _: False  # megatron's fails where there is no such library
    try:
        yield
    finally:
        megatron_optimizer.Adam, megatron_optimizer.is_te_min_version = Adam, version_check
