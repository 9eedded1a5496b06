"""Log-probabilities and entropy of sampled tokens from vocabulary-parallel logits.

One pass over the logits, two small collectives, and a backward pass that recomputes the probabilities:
nothing of the size of the logits is saved besides the logits themselves.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

_CHUNK_ELEMENTS = 1 << 22
"""Logits that are held in fp32 at once where the caller names no chunk: 16 MiB."""


def vocab_parallel_log_probs(
    logits_TV: Tensor,
    targets_T: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    entropy_grad: bool = False,
    vocab_size: int | None = None,
    chunk: int | None = None,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target under `softmax(logits / temperature)`, and the entropy of that softmax.

    `logits_TV` [T, V/tp]: this rank's contiguous slice of the vocabulary, any floating dtype.
    `targets_T` int64 [T]: ids of the whole vocabulary. `group`: the tensor-parallel ranks in the order of
    their slices (None: one rank holds all). `vocab_size`: real tokens; the columns from there on are padding
    and take no part. `chunk`: rows held in fp32 at once.
    Returns fp32 [T] in nats, twice; the second is None unless `entropy`. The entropy carries a gradient only
    with `entropy_grad`. The same values on every rank of `group`.
    """
    tp = group.size() if group is not None else 1
    start = (group.rank() if group is not None else 0) * logits_TV.shape[1]
    columns = (
        logits_TV.shape[1] if vocab_size is None else min(max(vocab_size - start, 0), logits_TV.shape[1])
    )
    rows = chunk or max(1, _CHUNK_ELEMENTS // max(1, logits_TV.shape[1]))
    log_probs_T, entropy_T = _LogProbs.apply(  # type: ignore[no-untyped-call]  # torch leaves `apply` untyped
        logits_TV,
        targets_T,
        temperature,
        entropy,
        entropy_grad,
        start,
        columns,
        rows,
        group if tp > 1 else None,
    )
    return log_probs_T, entropy_T if entropy else None


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_TV: Tensor,
        targets_T: Tensor,
        temperature: float,
        entropy: bool,
        entropy_grad: bool,
        start: int,
        columns: int,
        rows: int,
        group: ProcessGroup | None,
    ) -> tuple[Tensor, Tensor]:
        local_T = targets_T - start
        mine_T = (local_T >= 0) & (local_T < columns)
        index_T = torch.where(mine_T, local_T, 0)
        max_T, sums_3T = _local_sums(logits_TV, index_T, mine_T, temperature, entropy, columns, rows)
        max_T, (total_T, shifted_T, target_T) = _combine(max_T, sums_3T, group)
        log_total_T = total_T.log()
        log_z_T = max_T + log_total_T
        entropy_T = log_total_T - shifted_T / total_T
        saved = [entropy_T] if entropy_grad else []
        ctx.save_for_backward(logits_TV, index_T, mine_T, log_z_T, *saved)
        ctx.settings = (temperature, columns, rows)
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy_T)
        return target_T - log_z_T, entropy_T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits_TV, index_T, mine_T, log_z_T, *saved = ctx.saved_tensors
        temperature, columns, rows = ctx.settings
        grad_T = grads[0] / temperature
        entropy_grad_T = grads[1] / temperature if saved else None
        out_TV = torch.empty_like(logits_TV)
        out_TV[:, columns:] = 0
        for low in range(0, logits_TV.shape[0], rows):
            part = slice(low, low + rows)
            log_p = _scaled(logits_TV[part, :columns], temperature).sub_(log_z_T[part, None])
            if entropy_grad_T is None:
                grad = log_p.exp_().mul_(-grad_T[part, None])
            else:
                # d logp/dz_j = [j = target] - p_j;  dH/dz_j = -p_j (log p_j + H)
                grad = log_p.exp()
                log_p.add_(saved[0][part, None]).mul_(entropy_grad_T[part, None]).add_(grad_T[part, None])
                grad.mul_(log_p.neg_())
            if columns:
                grad.scatter_add_(1, index_T[part, None], (grad_T[part] * mine_T[part])[:, None])
            out_TV[part, :columns] = grad
        return out_TV, *[None] * 8


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """An fp32 copy of `logits / temperature`."""
    return logits.float() / temperature if temperature != 1.0 else logits.to(torch.float32, copy=True)


def _local_sums(
    logits_TV: Tensor,
    index_T: Tensor,
    mine_T: Tensor,
    temperature: float,
    entropy: bool,
    columns: int,
    rows: int,
) -> tuple[Tensor, Tensor]:
    """Per row of this slice: max m, and [Σ e^(z-m), Σ e^(z-m)(z-m), z_target or 0]."""
    length = logits_TV.shape[0]
    max_T = torch.full((length,), -torch.inf, device=logits_TV.device)
    sums_3T = torch.zeros((3, length), device=logits_TV.device)
    if columns == 0:
        return max_T, sums_3T
    for low in range(0, length, rows):
        part = slice(low, low + rows)
        z = _scaled(logits_TV[part, :columns], temperature)
        sums_3T[2, part] = z.gather(1, index_T[part, None])[:, 0]
        max_T[part] = z.amax(1)
        z.sub_(max_T[part, None])
        e = z.exp() if entropy else z.exp_()
        sums_3T[0, part] = e.sum(1)
        if entropy:
            sums_3T[1, part] = e.mul_(z).sum(1)
    sums_3T[2].masked_fill_(~mine_T, 0.0)
    return max_T, sums_3T


def _combine(max_T: Tensor, sums_3T: Tensor, group: ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """The same quantities of the whole vocabulary."""
    if group is None:
        return max_T, sums_3T
    whole_T = max_T.clone()
    dist.all_reduce(whole_T, dist.ReduceOp.MAX, group=group)
    shift_T = (max_T - whole_T).clamp_min(torch.finfo(torch.float32).min)  # -inf of an empty slice times 0
    scale_T = shift_T.exp()
    sums_3T[1] = scale_T * (sums_3T[1] + shift_T * sums_3T[0])
    sums_3T[0] *= scale_T
    dist.all_reduce(sums_3T, group=group)
    return whole_T, sums_3T
