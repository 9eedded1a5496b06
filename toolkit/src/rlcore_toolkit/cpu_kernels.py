"""What a training step on a CPU spends its time on: linear layers, SwiGLU and RMS norms, in fp32.

They are differentiable once and equal torch's own formulas up to the order of sums. And how the weights of
linear layers lie in memory, on which the speed of generation depends.

Their functions of autograd return rows, of which the shape of the input is a view made outside: autograd
refuses to change one in place that such a function made.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn import functional
from torch.nn.modules import module as hooks_of_all

_MANY_ROWS = 32
"""From here on oneDNN is the faster one, where it is."""
_FEW_ROWS = 64
"""Up to here it makes the gradient of an adapter's matrix in 0.1 to 0.9 of the time of MKL."""


_CPUINFO = Path("/proc/cpuinfo")
_INTEL = _CPUINFO.is_file() and "GenuineIntel" in _CPUINFO.read_text()
_BLOCK_ELEMENTS = 1 << (20 if _INTEL else 17)
"""Half a MiB, of which a few blocks fit the second-level cache of one core. On servers of Intel, whose caches
are larger, an optimizer step takes an eighth less time with 4 MiB."""


def takes_onednn(*, onednn: bool, mkl: bool, capability: str, is_intel: bool) -> bool:
    """Whether products go to oneDNN, on a processor of this `capability` (as torch calls it).

    oneDNN uses AVX-512 of every maker, MKL that of Intel alone. Where both use the same instructions, MKL is
    the faster one.
    """
    if not (onednn and mkl):
        return onednn
    return capability != "AVX2" and not is_intel


_TAKES_ONEDNN = takes_onednn(
    onednn=torch.backends.mkldnn.is_available(),
    mkl=torch.backends.mkl.is_available(),
    capability=torch.backends.cpu.get_cpu_capability(),
    is_intel=_INTEL,
)


def fits_kernel(x: Tensor) -> bool:
    """Whether these kernels are made for `x`."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def _blocks(rows: int, width: int) -> Iterator[slice]:
    step = max(1, _BLOCK_ELEMENTS // width)
    return (slice(start, start + step) for start in range(0, rows, step))


# --- SwiGLU ------------------------------------------------------------------------------------------------


def kernel_swiglu(x: Tensor, up: Tensor | None = None, *, made_by: Sequence[nn.Module] = ()) -> Tensor:
    """x [..., 2F], gate and up side by side → silu(gate) * up [..., F]; or the gate alone beside `up`.

    Works through blocks of rows that stay in the cache and saves its input only, where autograd would write
    and keep every intermediate result. `made_by`: the modules whose outputs the inputs are, unless somebody
    reads them elsewhere: the backward pass writes the gradients over them, where no forward hook saw them.
    """
    is_free = bool(made_by) and x.grad_fn is not None and (up is None or up.grad_fn is not None)
    overwrites = is_free and not (hooks_of_all._global_forward_hooks or are_hooked(made_by))
    out: Tensor = _SwiGlu.apply(x, up, overwrites)  # type: ignore[no-untyped-call] # torch does not type it
    return out.view(*x.shape[:-1], out.shape[1])


def are_hooked(modules: Sequence[nn.Module]) -> bool:
    """Whether a forward hook sees an output of `modules`, or of what is in them."""
    return any(inner._forward_hooks for module in modules for inner in module.modules())


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor | None, overwrites: bool) -> Tensor:
        gates, ups = _gate_and_up(x, up)
        out = torch.empty(gates.shape)
        for block in _blocks(*gates.shape):
            torch.mul(functional.silu(gates[block]), ups[block], out=out[block])
        ctx.save_for_backward(x, up)  # not `gates`: autograd takes no view that was made here and has changed
        ctx.overwrites = overwrites
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """Memory that was just read is written faster than other memory."""
        x, up = ctx.saved_tensors
        x, up = x.contiguous(), None if up is None else up.contiguous()
        of_x, of_up = x, up
        if not ctx.overwrites:
            of_x, of_up = torch.empty_like(x), None if up is None else torch.empty_like(up)
        (gates, ups), (of_gates, of_ups) = _gate_and_up(x, up), _gate_and_up(of_x, of_up)
        for block in _blocks(*gates.shape):
            gate, incoming = gates[block], gradient[block]
            product, of_silu = functional.silu(gate).mul_(incoming), incoming * ups[block]
            torch.ops.aten.silu_backward.grad_input(of_silu, gate, grad_input=of_gates[block])
            of_ups[block].copy_(product)
        return of_x, of_up, None


def _gate_and_up(x: Tensor, up: Tensor | None) -> Sequence[Tensor]:
    """Both as rows [N, F], which share the memory of contiguous inputs."""
    rows = x.reshape(-1, x.shape[-1])
    return rows.chunk(2, 1) if up is None else (rows, up.reshape(rows.shape))


# --- RMS norm ----------------------------------------------------------------------------------------------


def kernel_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H] divided by the root of its mean square, times `weight` [H] → [..., H].

    Works through blocks of rows, as `kernel_swiglu`, and keeps one number a row beside its input. On one core
    a forward and a backward pass take a third to two thirds of torch's time.
    """
    out: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call] # torch does not type it
    return out.view(x.shape)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        size = x.shape[-1]
        rows = x.reshape(-1, size)
        out, scale = torch.empty_like(rows), rows.new_empty(len(rows), 1)
        for block in _blocks(len(rows), size):
            norm = torch.linalg.vector_norm(rows[block], dim=-1, keepdim=True)
            scale[block] = norm.square_().div_(size).add_(eps).rsqrt_()
            torch.mul(rows[block], scale[block], out=out[block]).mul_(weight)
        ctx.save_for_backward(x, scale, weight)  # not `rows`, which may be a copy
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """With n = x * scale and the incoming gradient g: the gradient of the weight is g * n, summed up.

        That of x is scale * (g * weight - n * mean(g * weight * n)).
        """
        x, scale, weight = ctx.saved_tensors
        size = x.shape[-1]
        rows = x.reshape(-1, size)
        of_x, of_weight = torch.empty_like(rows), torch.zeros_like(weight)
        for block in _blocks(len(rows), size):
            normed = rows[block] * scale[block]
            product = gradient[block] * normed
            of_weight += product.sum(0)
            mean = torch.mv(product, weight).div_(size).unsqueeze(1)
            torch.mul(gradient[block], weight, out=of_x[block])
            of_x[block].addcmul_(normed, mean, value=-1).mul_(scale[block])
        return of_x.view(x.shape), of_weight, None


# --- linear layers -----------------------------------------------------------------------------------------


def kernel_linear(x: Tensor, weight: Tensor, reduce_over: ProcessGroup | None = None) -> Tensor:
    """x [..., I] times the transpose of `weight` [O, I].

    `reduce_over`: tensor-parallel ranks that hold other rows of the matrix, over which the gradient of `x` is
    summed.
    """
    rows = x.reshape(-1, x.shape[-1])
    out: Tensor = _Linear.apply(rows, weight, reduce_over)  # type: ignore[no-untyped-call] # torch does not type it
    return out.view(*x.shape[:-1], len(weight))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, reduce_over: ProcessGroup | None) -> Tensor:
        # A frozen matrix needs no input to be kept.
        ctx.save_for_backward(rows if weight.requires_grad else None, weight)
        ctx.reduce_over = reduce_over
        return times_transposed(rows, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        rows, weight = ctx.saved_tensors
        of_x = times_transposed(gradient, weight.t())
        waiting = None
        if ctx.reduce_over is not None:
            waiting = dist.all_reduce(of_x, group=ctx.reduce_over, async_op=True)
        of_weight = None if rows is None else _of_weight(gradient, rows)
        if waiting is not None:
            waiting.wait()
        return of_x, of_weight, None


def _of_weight(incoming: Tensor, rows: Tensor) -> Tensor:
    """The transpose of `incoming` [N, O] times `rows` [N, I]."""
    is_wide = incoming.shape[1] < rows.shape[1]
    first, second = (incoming, rows) if is_wide else (rows, incoming)
    if _TAKES_ONEDNN and len(rows) and first.shape[1] <= _FEW_ROWS and fits_kernel(rows):
        out: Tensor = torch.ops.mkldnn._linear_pointwise(first.t(), second.t(), None, "none", [], "")
        return out if is_wide else out.t()
    # Off Intel's processors, the library was faster with the larger of the two dimensions first.
    return torch.mm(rows.t(), incoming).t() if is_wide and not _INTEL else torch.mm(incoming.t(), rows)


def times_transposed(x: Tensor, weight: Tensor) -> Tensor:
    """x [N, I] times the transpose of `weight` [O, I], without a gradient of its own.

    Many rows in fp32 go to oneDNN where that is faster than torch's own choice, MKL: with AVX-512 by a sixth
    to a half, on processors that are not Intel's. (With AVX2 it is slower by a twentieth to a fifth, and with
    Intel's AVX-512 by up to a third where matrices are small.)
    """
    if _TAKES_ONEDNN and len(x) >= _MANY_ROWS and fits_kernel(x):
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
        return out
    return torch.mm(x, weight.t())


# --- the layout of weights ---------------------------------------------------------------------------------

_COLUMNS = _INTEL and not _TAKES_ONEDNN
_COPIED_ROWS = 32
"""Two cache lines of fp32 a column."""
_LARGE_MATRIX = 1 << 18
"""Elements. A smaller one is copied faster as a whole, for it stays in the cache."""


def for_few_rows(weight: Tensor) -> Tensor:
    """`weight` [O, I] itself, or a copy by columns where `times_transposed` is then faster.

    MKL on Intel's processors takes 0.4 to 0.8 times as long for 8 to 64 rows, as they are in generation, and
    as long as before for one row or hundreds.
    """
    if not (_COLUMNS and fits_kernel(weight)):
        return weight
    laid_out = weight.new_empty(weight.shape[::-1]).t()
    copy_into(laid_out, weight)
    return laid_out


@torch.no_grad()
def by_rows(tensor: Tensor) -> Tensor:
    """`tensor.contiguous()` without gradients, and faster for a matrix that lies by columns."""
    if tensor.is_contiguous() or not _is_copied_in_parts(tensor):
        return tensor.contiguous()
    out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    copy_into(out.t(), tensor.t())
    return out


@torch.no_grad()
def copy_into(target: Tensor, source: Tensor) -> None:
    """`target.copy_(source)` of one shape, without gradients; faster for a `target` that lies by columns.

    Torch writes one row after the other, each number to another page of memory. Here a few rows are written
    together: a large matrix takes a fifth of the time.
    """
    if _is_copied_in_parts(target) and not target.is_contiguous():
        for to, of in zip(target.split(_COPIED_ROWS), source.split(_COPIED_ROWS), strict=True):
            to.copy_(of)
    else:
        target.copy_(source)


def _is_copied_in_parts(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and tensor.numel() >= _LARGE_MATRIX
