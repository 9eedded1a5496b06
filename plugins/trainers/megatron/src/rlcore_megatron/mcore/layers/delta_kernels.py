"""The convolution and the recurrence of a gated delta net: in torch, or by FLA's kernels on a GPU.

https://github.com/fla-org/flash-linear-attention, of which the package fla-core has the kernels.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore.layers.delta_rule import causal_convolution, gated_delta_rule
from rlcore_megatron.mcore.packs.chunks import Chunks, Run
from rlcore_toolkit import MEASURES, TOLERANCES, gaps

_RUNS: tuple[Run, ...] = ((0, 70, -1), (70, 5, 0), (75, 66, 0), (141, 1, 0), (142, 2, -1), (144, 20, 142))
"""Of the check: a prompt with three responses, and one that is shorter than a convolution."""


@dataclass(frozen=True)
class DeltaKernels:
    """What computes a layer between its projections.

    `convolve`: x [T, D], weight [D, W], chunks → SiLU of the causal convolution, [T, D]. `recur`: the
    arguments and values of `gated_delta_rule`; its values may have the dtype of the arguments' values.
    """

    convolve: Callable[[Tensor, Tensor, Chunks], Tensor]
    recur: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Chunks], Tensor]


def _convolve(x_TD: Tensor, weight_DW: Tensor, chunks: Chunks) -> Tensor:
    return functional.silu(causal_convolution(x_TD, weight_DW, chunks.taps(weight_DW.shape[1] - 1)))


TORCH = DeltaKernels(_convolve, gated_delta_rule)


@cache
def kernels_for(heads: tuple[int, int], sizes: tuple[int, int], dtype: torch.dtype) -> DeltaKernels:
    """FLA's where this process has a GPU and they compute what torch does, else torch's; a line says which.

    `heads`: of keys and of values; `sizes`: of a key and of a value.
    """
    if not torch.cuda.is_available():
        return TORCH
    reason = _reason_against_fla(heads, sizes, dtype)
    print(f"Gated delta nets: {f'torch, as {reason}' if reason else 'by the kernels of FLA'}.", flush=True)
    return TORCH if reason else fla()


def _reason_against_fla(heads: tuple[int, int], sizes: tuple[int, int], dtype: torch.dtype) -> str | None:
    if importlib.util.find_spec("fla") is None:
        return "fla-core is not installed"
    try:
        far = too_far(kernel_gaps(fla(), heads, sizes, dtype, torch.device("cuda")), dtype)
    except Exception as error:  # what a compiler of kernels raises has no common class
        return f"FLA's kernels fail here ({type(error).__name__}: {error})"
    return far and f"FLA's kernels differ from it in {far}"


def too_far(found: Mapping[str, Sequence[float]], dtype: torch.dtype) -> str | None:
    """The first of `kernel_gaps` that is more than its tolerance, in words; None: there is none."""
    for name, measured in found.items():
        for measure, gap, most in zip(MEASURES, measured, TOLERANCES[dtype], strict=True):
            if not gap <= most:  # what is not a number is too large as well
                return f"{name} by {gap:.1e} {measure}, at most {most:g} in {dtype} is allowed"
    return None


def fla() -> DeltaKernels:
    """FLA's kernels. A run that goes on from another one starts from that one's last state."""
    convolution = importlib.import_module("fla.modules.causal_conv1d").causal_conv1d
    rule = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule

    def convolve(x_TD: Tensor, weight_DW: Tensor, chunks: Chunks) -> Tensor:
        tokens, ends, own = chunks.reaching(weight_DW.shape[1] - 1)
        rows = x_TD.index_select(0, tokens)[None]
        mixed: Tensor = convolution(rows, weight_DW, activation="silu", cu_seqlens=ends)[0]
        return mixed[0].index_select(0, own)

    def recur(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, chunks: Chunks) -> Tensor:
        tensors, made = (q.to(v.dtype), k.to(v.dtype), v, decay[..., 0], beta), []
        states: Any = None
        for level in chunks.levels:
            values, states = rule(
                *(x.index_select(0, level.tokens)[None] for x in tensors),
                scale=1.0,
                initial_state=None if level.before is None else states[level.before],
                output_final_state=level is not chunks.levels[-1],
                cu_seqlens=level.ends,
            )
            made.append(values[0])
        return torch.cat(made).index_select(0, chunks.places)

    return DeltaKernels(convolve, recur)


@torch.enable_grad()
def kernel_gaps(
    kernels: DeltaKernels,
    heads: tuple[int, int],
    sizes: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, tuple[float, float, float]]:
    """How far the values and gradients of `kernels` are from torch's, by each of `MEASURES`."""
    chunks = Chunks(_RUNS, total := sum(length for _, length, _ in _RUNS), device=device)
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    # what a kernel reads in `dtype` is rounded beforehand, for both
    q, k = (functional.normalize(noise(total, heads[0], sizes[0]), dim=-1) for _ in range(2))
    v, x, weight = noise(total, heads[1], sizes[1]), noise(total, 32), noise(32, 4)
    rounded = [one.to(device, dtype) for one in (q, k, v, x, weight)]
    rates = [one.to(device) for one in (-noise(total, heads[1], 1).exp(), noise(total, heads[1]).sigmoid())]
    slopes = [noise(total, 32).to(device), noise(*v.shape).to(device)]

    def results(kernels: DeltaKernels) -> list[Tensor]:
        leaves = [one.detach().requires_grad_() for one in (*rounded, *rates)]
        q, k, v, x, weight, decay, beta = leaves
        mixed = kernels.convolve(x, weight, chunks)
        values = kernels.recur(q.float(), k.float(), v, decay, beta, chunks)
        total = (mixed.float() * slopes[0]).sum() + (values.float() * slopes[1]).sum()
        return [one.detach().double() for one in (mixed, values, *torch.autograd.grad(total, leaves))]

    names = ("convolution", "values", "dq", "dk", "dv", "dx", "dweight", "ddecay", "dbeta")
    pairs = zip(names, results(kernels), results(TORCH), strict=True)
    return {name: gaps(one, other) for name, one, other in pairs}
