"""Log-probabilities of tokens, entropy and likeliest tokens from vocabulary-parallel logits.

One pass over the logits, two small collectives, and a backward pass that recomputes the probabilities:
nothing of the size of the logits is saved besides the logits themselves. From `HiddenRows` the logits are
made a chunk at a time, in either pass, and never exist as a whole.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from rlcore_toolkit.cpu_kernels import times_transposed
from rlcore_toolkit.limits import ROWS_AT_ONCE

_CHUNK_ELEMENTS = 1 << 22
"""Logits that are held in fp32 at once where the caller names no chunk: 16 MiB."""


@dataclass(frozen=True, kw_only=True)
class HiddenRows:
    """Logits that are not made yet, those of `hidden` [T, H] times the transpose of `matrix` [V/tp, H].

    The gradient of `hidden` is that of this rank's slice of the vocabulary: to be summed over ranks. `after`:
    from that product [n, V/tp] to the logits, each of its own entry (a scale, a soft cap); None: as it is.
    """

    hidden: Tensor
    matrix: Tensor
    after: Callable[[Tensor], Tensor] | None = None


Logits = Tensor | HiddenRows
"""[T, V/tp]: this rank's contiguous slice of the vocabulary, any floating dtype."""

_Read = Callable[[slice], Tensor]
"""From a run of rows to their logits / temperature, without padding: fp32, and the reader's own."""


def vocab_parallel_log_probs(
    logits: Logits,
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

    `targets` int64 [T], or [T, K] for several of each row: ids of the whole vocabulary. `group`: the
    tensor-parallel ranks in the order of their slices (None: one rank holds all). `vocab_size`: real tokens;
    the columns from there on are padding and take no part. `chunk`: rows held in fp32 at once.
    Returns fp32 of the shape of `targets` and fp32 [T], in nats; the second is None unless `entropy`. The
    entropy carries a gradient only with `entropy_grad`. The same values on every rank of `group`.
    """
    tp = group.size() if group is not None else 1
    start, columns = _slice(logits, vocab_size, group)
    rows = chunk or _rows_at_once(logits)
    settings = _Settings(temperature, entropy, entropy_grad, start, columns, rows, group if tp > 1 else None)
    targets_TK = targets if targets.dim() == 2 else targets[:, None]
    if isinstance(logits, HiddenRows):
        outputs = _FromHidden.apply(logits.hidden, logits.matrix, targets_TK, settings, logits.after)  # type: ignore[no-untyped-call]  # torch leaves `apply` untyped
    else:
        outputs = _FromLogits.apply(logits, targets_TK, settings)  # type: ignore[no-untyped-call]
    log_probs_TK, entropy_T = outputs
    return log_probs_TK.view(targets.shape), entropy_T if entropy else None


def response_log_probs(
    logits: Logits, targets: Tensor, ids: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Of n response tokens: log-probs [n], entropies [n] if asked for, and log-probs [n, K] of other tokens.

    `logits`: of n rows, or of one where n is 0, and then so is all that is returned. `targets` int64 [n],
    `ids` int64 [n, K], or None. `options`: of `vocab_parallel_log_probs`.
    """
    own = targets if len(targets) else targets.new_zeros(1)
    if ids is not None:
        own = torch.cat([own[:, None], ids if len(targets) else ids.new_zeros(1, ids.shape[1])], 1)
    log_probs, entropies = vocab_parallel_log_probs(logits, own, **options)
    if ids is None:
        return log_probs, entropies, None
    return log_probs[:, 0], entropies, log_probs[:, 1:]


def vocab_parallel_top(
    logits: Logits, k: int, *, vocab_size: int | None = None, group: ProcessGroup | None = None
) -> Tensor:
    """The ids of the `k` largest logits of each row, int64 [T, k], the largest first; without gradient.

    Logits, `vocab_size` and `group` are those of `vocab_parallel_log_probs`. `k` is at most the vocabulary.
    The same ids on every rank of `group`.
    """
    start, columns = _slice(logits, vocab_size, group)
    count, width = _shape(logits)
    device = logits.device if isinstance(logits, Tensor) else logits.hidden.device
    most, rows, read = min(k, width), _rows_at_once(logits), _rows(logits, columns)
    found_TK = torch.full((count, most), -torch.inf, device=device)
    ids_TK = torch.zeros(found_TK.shape, dtype=torch.int64, device=device)
    mine = min(most, columns)  # the k best of all ranks are among the k best of each
    with torch.no_grad():
        for low in range(0, count if mine else 0, rows):
            part = slice(low, low + rows)
            found_TK[part, :mine], ids_TK[part, :mine] = read(part).topk(mine, 1)
    ids_TK += start
    if group is None or group.size() == 1:
        return ids_TK
    all_found = [torch.empty_like(found_TK) for _ in range(group.size())]
    all_ids = [torch.empty_like(ids_TK) for _ in range(group.size())]
    dist.all_gather(all_found, found_TK, group=group)
    dist.all_gather(all_ids, ids_TK, group=group)
    return torch.cat(all_ids, 1).gather(1, torch.cat(all_found, 1).topk(k, 1).indices)


def _shape(logits: Logits) -> tuple[int, int]:
    if isinstance(logits, HiddenRows):
        return len(logits.hidden), len(logits.matrix)
    return logits.shape[0], logits.shape[1]


def _slice(logits: Logits, vocab_size: int | None, group: ProcessGroup | None) -> tuple[int, int]:
    """The first id of this rank's slice, and how many of its columns are no padding."""
    _, width = _shape(logits)
    start = (group.rank() if group is not None else 0) * width
    return start, width if vocab_size is None else min(max(vocab_size - start, 0), width)


def _rows_at_once(logits: Logits) -> int:
    rows = max(1, _CHUNK_ELEMENTS // max(1, _shape(logits)[1]))
    return max(rows, ROWS_AT_ONCE) if isinstance(logits, HiddenRows) else rows


def _rows(logits: Logits, columns: int) -> _Read:
    """A `_Read` that gives the logits' own memory where they are fp32: only to be read."""
    if isinstance(logits, HiddenRows):
        hidden_TH, matrix_CH, after = logits.hidden, logits.matrix[:columns], logits.after or _same
        return lambda part: after(times_transposed(hidden_TH[part], matrix_CH)).float()
    logits_TV = logits
    return lambda part: logits_TV[part, :columns].float()


def _same(products: Tensor) -> Tensor:
    return products


def _reader(logits: Logits, columns: int, temperature: float) -> _Read:
    read = _rows(logits, columns)
    is_shared = isinstance(logits, Tensor) and logits.dtype == torch.float32

    def scaled(part: slice) -> Tensor:
        own = read(part).clone() if is_shared else read(part)
        return own if temperature == 1.0 else own.div_(temperature)

    return scaled


@dataclass(frozen=True)
class _Settings:
    """`start`, `columns`: of the slice. `rows`: at once. `group`: None for one rank."""

    temperature: float
    entropy: bool
    entropy_grad: bool
    start: int
    columns: int
    rows: int
    group: ProcessGroup | None


class _FromLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_TV: Tensor, targets_TK: Tensor, settings: _Settings
    ) -> tuple[Tensor, Tensor]:
        read = _reader(logits_TV, settings.columns, settings.temperature)
        return _forward(ctx, read, (logits_TV,), targets_TK, settings)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (logits_TV, *kept), settings = ctx.saved_tensors, ctx.settings
        out_TV = torch.empty_like(logits_TV)
        out_TV[:, settings.columns :] = 0
        read = _reader(logits_TV, settings.columns, settings.temperature)
        for part, grad in _gradients(read, kept, grads, settings):
            out_TV[part, : settings.columns] = grad
        return out_TV, None, None


class _FromHidden(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        matrix_VH: Tensor,
        targets_TK: Tensor,
        settings: _Settings,
        after: Callable[[Tensor], Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        logits = HiddenRows(hidden=hidden_TH, matrix=matrix_VH, after=after)
        ctx.after = after
        read = _reader(logits, settings.columns, settings.temperature)
        return _forward(ctx, read, (hidden_TH, matrix_VH), targets_TK, settings)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        (hidden_TH, matrix_VH, *kept), settings = ctx.saved_tensors, ctx.settings
        matrix_CH = matrix_VH[: settings.columns]
        out_TH = torch.zeros_like(hidden_TH)
        out_VH: Tensor | None = None
        out_CH = matrix_CH[:0]
        if ctx.needs_input_grad[1]:
            # in fp32, for a sum of many chunks in bf16 would lose what the small ones add
            out_VH = torch.zeros(matrix_VH.shape, device=matrix_VH.device)
            out_CH = out_VH[: settings.columns]
        logits = HiddenRows(hidden=hidden_TH, matrix=matrix_VH, after=ctx.after)
        read = _reader(logits, settings.columns, settings.temperature)
        for part, grad in _gradients(read, kept, grads, settings):
            if ctx.after is not None:
                grad = _slope(ctx.after, times_transposed(hidden_TH[part], matrix_CH), grad)
            mine = grad.to(hidden_TH.dtype)
            out_TH[part] = times_transposed(mine, matrix_CH.t())
            if out_VH is not None:
                _add_product(out_CH, mine.t(), hidden_TH[part])
        return out_TH, None if out_VH is None else out_VH.to(matrix_VH.dtype), None, None, None


def _slope(after: Callable[[Tensor], Tensor], products: Tensor, grad: Tensor) -> Tensor:
    """The gradient of `products`, from that of `after(products)`."""
    with torch.enable_grad():
        products = products.detach().requires_grad_()
        outputs = after(products).float()
    return torch.autograd.grad(outputs, products, grad)[0]


def _add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Add `a @ b` to `out`, which is fp32 whatever the factors are."""
    if b.dtype == torch.float32:
        out.addmm_(a, b)
        return
    step = max(1, 4 * _CHUNK_ELEMENTS // b.shape[1])
    for start in range(0, len(out), step):  # not the whole product at once, which is as large as the matrix
        rows = slice(start, start + step)
        out[rows] += a[rows] @ b


def _forward(
    ctx: Any, read: _Read, sources: tuple[Tensor, ...], targets_TK: Tensor, settings: _Settings
) -> tuple[Tensor, Tensor]:
    """Log-probs [T, K] and entropy [T]. Keeps `sources`, then what `_gradients` reads."""
    local_TK = targets_TK - settings.start
    mine_TK = (local_TK >= 0) & (local_TK < settings.columns)
    index_TK = torch.where(mine_TK, local_TK, 0)
    max_T, sums_ST = _local_sums(read, index_TK, mine_TK, settings)
    max_T, (total_T, shifted_T, *target_KT) = _combine(max_T, sums_ST, settings.group)
    # With m the maximum, S = Σ e^(z-m) and S1 = Σ e^(z-m) (z-m):
    #   log p_k = z_k - m - log S     H = log S - S1 / S
    log_total_T = total_T.log()
    log_z_T = max_T + log_total_T
    entropy_T = log_total_T - shifted_T / total_T
    saved = [entropy_T] if settings.entropy_grad else []
    ctx.save_for_backward(*sources, index_TK, mine_TK, log_z_T, *saved)
    ctx.settings = settings
    if not settings.entropy_grad:
        ctx.mark_non_differentiable(entropy_T)
    return torch.stack(target_KT, 1) - log_z_T[:, None], entropy_T


def _gradients(
    read: _Read, kept: Sequence[Tensor], grads: Sequence[Tensor], settings: _Settings
) -> Iterator[tuple[slice, Tensor]]:
    """A run of rows after the other, and the gradient of their logits, fp32 [rows, columns]."""
    index_TK, mine_TK, log_z_T, *saved = kept
    grad_TK = grads[0] / settings.temperature
    grad_T = grad_TK.sum(1)
    entropy_grad_T = grads[1] / settings.temperature if saved else None
    for low in range(0, len(index_TK), settings.rows):
        part = slice(low, low + settings.rows)
        log_p = read(part).sub_(log_z_T[part, None])
        if entropy_grad_T is None:
            # dz_j = Σ_k g_k ([j = k] - p_j) = -p_j Σ_k g_k, plus g_k at the targets k (below)
            grad = log_p.exp_().mul_(-grad_T[part, None])
        else:
            # d logp_k/dz_j = [j = k] - p_j;  dH/dz_j = -p_j (log p_j + H)
            grad = log_p.exp()
            log_p.add_(saved[0][part, None]).mul_(entropy_grad_T[part, None]).add_(grad_T[part, None])
            grad.mul_(log_p.neg_())
        if settings.columns:
            grad.scatter_add_(1, index_TK[part], grad_TK[part] * mine_TK[part])
        yield part, grad


def _local_sums(read: _Read, index_TK: Tensor, mine_TK: Tensor, settings: _Settings) -> tuple[Tensor, Tensor]:
    """Per row of this slice: max m, and [Σ e^(z-m), Σ e^(z-m)(z-m), z or 0 of each of the K targets]."""
    length = len(index_TK)
    max_T = torch.full((length,), -torch.inf, device=index_TK.device)
    sums_ST = torch.zeros((2 + index_TK.shape[1], length), device=index_TK.device)
    if settings.columns == 0:
        return max_T, sums_ST
    for low in range(0, length, settings.rows):
        part = slice(low, low + settings.rows)
        z = read(part)
        # A target of another rank's slice reads index 0 here, which is masked out below. Before the maximum
        # is taken off in place.
        sums_ST[2:, part] = z.gather(1, index_TK[part]).T
        max_T[part] = z.amax(1)
        z.sub_(max_T[part, None])
        e = z.exp() if settings.entropy else z.exp_()
        sums_ST[0, part] = e.sum(1)
        if settings.entropy:
            sums_ST[1, part] = e.mul_(z).sum(1)
    sums_ST[2:].masked_fill_(~mine_TK.T, 0.0)
    return max_T, sums_ST


def _combine(max_T: Tensor, sums_ST: Tensor, group: ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """The same quantities of the whole vocabulary."""
    if group is None:
        return max_T, sums_ST
    whole_T = max_T.clone()
    dist.all_reduce(whole_T, dist.ReduceOp.MAX, group=group)
    # From this slice's maximum m' to the whole one m, with s = m' - m ≤ 0:
    #   S(m) = e^s S(m')     S1(m) = e^s (S1(m') + s S(m'))
    shift_T = (max_T - whole_T).clamp_min(torch.finfo(torch.float32).min)  # -inf of an empty slice times 0
    scale_T = shift_T.exp()
    sums_ST[1] = scale_T * (sums_ST[1] + shift_T * sums_ST[0])
    sums_ST[0] *= scale_T
    dist.all_reduce(sums_ST, group=group)
    return whole_T, sums_ST
