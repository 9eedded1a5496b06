"""Log-probabilities of tokens, entropy and likeliest tokens from vocabulary-parallel logits.

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
    targets: Tensor,
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
    `targets` int64 [T], or [T, K] for several of each row: ids of the whole vocabulary. `group`: the
    tensor-parallel ranks in the order of their slices (None: one rank holds all). `vocab_size`: real tokens;
    the columns from there on are padding and take no part. `chunk`: rows held in fp32 at once.
    Returns fp32 of the shape of `targets` and fp32 [T], in nats; the second is None unless `entropy`. The
    entropy carries a gradient only with `entropy_grad`. The same values on every rank of `group`.
    """
    tp = group.size() if group is not None else 1
    start, columns = _slice(logits_TV, vocab_size, group)
    rows = chunk or _rows_at_once(logits_TV)
    log_probs_TK, entropy_T = _LogProbs.apply(  # type: ignore[no-untyped-call]  # torch leaves `apply` untyped
        logits_TV,
        targets if targets.dim() == 2 else targets[:, None],
        temperature,
        entropy,
        entropy_grad,
        start,
        columns,
        rows,
        group if tp > 1 else None,
    )
    return log_probs_TK.view(targets.shape), entropy_T if entropy else None


def vocab_parallel_top(
    logits_TV: Tensor, k: int, *, vocab_size: int | None = None, group: ProcessGroup | None = None
) -> Tensor:
    """The ids of the `k` largest logits of each row, int64 [T, k], the largest first; without gradient.

    Logits, `vocab_size` and `group` are those of `vocab_parallel_log_probs`. `k` is at most the vocabulary.
    The same ids on every rank of `group`.
    """
    start, columns = _slice(logits_TV, vocab_size, group)
    width = min(k, logits_TV.shape[1])
    found_TK = logits_TV.new_full((len(logits_TV), width), -torch.inf, dtype=torch.float32)
    ids_TK = torch.zeros(found_TK.shape, dtype=torch.int64, device=logits_TV.device)
    rows, mine = _rows_at_once(logits_TV), min(width, columns)
    for low in range(0, len(logits_TV) if mine else 0, rows):
        part = slice(low, low + rows)
        found_TK[part, :mine], ids_TK[part, :mine] = logits_TV[part, :columns].detach().float().topk(mine, 1)
    ids_TK += start
    if group is None or group.size() == 1:
        return ids_TK
    all_found = [torch.empty_like(found_TK) for _ in range(group.size())]
    all_ids = [torch.empty_like(ids_TK) for _ in range(group.size())]
    dist.all_gather(all_found, found_TK, group=group)
    dist.all_gather(all_ids, ids_TK, group=group)
    return torch.cat(all_ids, 1).gather(1, torch.cat(all_found, 1).topk(k, 1).indices)


def _slice(logits_TV: Tensor, vocab_size: int | None, group: ProcessGroup | None) -> tuple[int, int]:
    """The first id of this rank's slice, and how many of its columns are no padding."""
    width = logits_TV.shape[1]
    start = (group.rank() if group is not None else 0) * width
    return start, width if vocab_size is None else min(max(vocab_size - start, 0), width)


def _rows_at_once(logits_TV: Tensor) -> int:
    return max(1, _CHUNK_ELEMENTS // max(1, logits_TV.shape[1]))


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_TV: Tensor,
        targets_TK: Tensor,
        temperature: float,
        entropy: bool,
        entropy_grad: bool,
        start: int,
        columns: int,
        rows: int,
        group: ProcessGroup | None,
    ) -> tuple[Tensor, Tensor]:
        local_TK = targets_TK - start
        mine_TK = (local_TK >= 0) & (local_TK < columns)
        index_TK = torch.where(mine_TK, local_TK, 0)
        max_T, sums_ST = _local_sums(logits_TV, index_TK, mine_TK, temperature, entropy, columns, rows)
        max_T, (total_T, shifted_T, *target_KT) = _combine(max_T, sums_ST, group)
        log_total_T = total_T.log()
        log_z_T = max_T + log_total_T
        entropy_T = log_total_T - shifted_T / total_T
        saved = [entropy_T] if entropy_grad else []
        ctx.save_for_backward(logits_TV, index_TK, mine_TK, log_z_T, *saved)
        ctx.settings = (temperature, columns, rows)
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy_T)
        return torch.stack(target_KT, 1) - log_z_T[:, None], entropy_T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits_TV, index_TK, mine_TK, log_z_T, *saved = ctx.saved_tensors
        temperature, columns, rows = ctx.settings
        grad_TK = grads[0] / temperature
        grad_T = grad_TK.sum(1)
        entropy_grad_T = grads[1] / temperature if saved else None
        out_TV = torch.empty_like(logits_TV)
        out_TV[:, columns:] = 0
        for low in range(0, logits_TV.shape[0], rows):
            part = slice(low, low + rows)
            log_p = _scaled(logits_TV[part, :columns], temperature).sub_(log_z_T[part, None])
            if entropy_grad_T is None:
                grad = log_p.exp_().mul_(-grad_T[part, None])
            else:
                # d logp_k/dz_j = [j = k] - p_j;  dH/dz_j = -p_j (log p_j + H)
                grad = log_p.exp()
                log_p.add_(saved[0][part, None]).mul_(entropy_grad_T[part, None]).add_(grad_T[part, None])
                grad.mul_(log_p.neg_())
            if columns:
                grad.scatter_add_(1, index_TK[part], grad_TK[part] * mine_TK[part])
            out_TV[part, :columns] = grad
        return out_TV, *[None] * 8


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """An fp32 copy of `logits / temperature`."""
    return logits.float() / temperature if temperature != 1.0 else logits.to(torch.float32, copy=True)


def _local_sums(
    logits_TV: Tensor,
    index_TK: Tensor,
    mine_TK: Tensor,
    temperature: float,
    entropy: bool,
    columns: int,
    rows: int,
) -> tuple[Tensor, Tensor]:
    """Per row of this slice: max m, and [Σ e^(z-m), Σ e^(z-m)(z-m), z or 0 of each of the K targets]."""
    length = logits_TV.shape[0]
    max_T = torch.full((length,), -torch.inf, device=logits_TV.device)
    sums_ST = torch.zeros((2 + index_TK.shape[1], length), device=logits_TV.device)
    if columns == 0:
        return max_T, sums_ST
    for low in range(0, length, rows):
        part = slice(low, low + rows)
        z = _scaled(logits_TV[part, :columns], temperature)
        sums_ST[2:, part] = z.gather(1, index_TK[part]).T
        max_T[part] = z.amax(1)
        z.sub_(max_T[part, None])
        e = z.exp() if entropy else z.exp_()
        sums_ST[0, part] = e.sum(1)
        if entropy:
            sums_ST[1, part] = e.mul_(z).sum(1)
    sums_ST[2:].masked_fill_(~mine_TK.T, 0.0)
    return max_T, sums_ST


def _combine(max_T: Tensor, sums_ST: Tensor, group: ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """The same quantities of the whole vocabulary."""
    if group is None:
        return max_T, sums_ST
    whole_T = max_T.clone()
    dist.all_reduce(whole_T, dist.ReduceOp.MAX, group=group)
    shift_T = (max_T - whole_T).clamp_min(torch.finfo(torch.float32).min)  # -inf of an empty slice times 0
    scale_T = shift_T.exp()
    sums_ST[1] = scale_T * (sums_ST[1] + shift_T * sums_ST[0])
    sums_ST[0] *= scale_T
    dist.all_reduce(sums_ST, group=group)
    return whole_T, sums_ST
