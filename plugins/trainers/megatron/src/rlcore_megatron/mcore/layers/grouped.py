"""Products of tokens that are sorted by expert with the matrices of the experts."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def each(x: Tensor, weight: Tensor, counts: Sequence[int]) -> Tensor:
    """One multiplication an expert; one without tokens too, so that its gradient is zero and not missing."""
    parts = zip(x.split(list(counts)), weight.unbind(), strict=True)
    return torch.cat([functional.linear(rows, matrix) for rows, matrix in parts])


def grouped(x: Tensor, weight: Tensor, counts: Sequence[int]) -> Tensor:
    """All experts in one kernel: bf16 on a GPU. Expert e has the rows from `ends[e - 1]` to `ends[e]`."""
    ends = torch.tensor(counts, device=x.device).cumsum(0).to(torch.int32)
    return functional.grouped_mm(x, weight.transpose(1, 2), offs=ends)
