"""Weights in flattened buckets: the bytes of several tensors, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """What a bucket holds, in its order. `dtypes`: torch's names, without `torch.`."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


def grouped(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Runs of `items` whose sizes add up to at most `limit`; a larger one is alone."""
    bucket: list[T] = []
    total = 0
    for item in items:
        if bucket and total + size(item) > limit:
            yield bucket
            bucket, total = [], 0
        bucket.append(item)
        total += size(item)
    if bucket:
        yield bucket


def buckets(tensors: Mapping[str, Tensor], limit_bytes: int) -> tuple[Bucket, ...]:
    """All of `tensors` in buckets of at most `limit_bytes`."""
    runs = grouped(tensors.items(), lambda pair: pair[1].nbytes, limit_bytes)
    return tuple(
        Bucket(
            names=tuple(name for name, _ in run),
            dtypes=tuple(str(one.dtype).removeprefix("torch.") for _, one in run),
            shapes=tuple(tuple(one.shape) for _, one in run),
        )
        for run in runs
    )


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Their bytes, uint8 [n]."""
    return torch.cat([one.contiguous().reshape(-1).view(torch.uint8) for one in tensors])
