"""Weights in flattened buckets: the bytes of several tensors, one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_ONE_MATRIX = re.compile(r"\.self_attn\.(q_a_proj|kv_a_proj_with_mqa)\.")
"""Down-projections of latent attention. SGLang makes one matrix of a layer's two, and drops one that comes
without the other."""


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


def bucket_names(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Names, with the bytes of each, in runs of at most `limit` bytes.

    Names of which SGLang makes one matrix are never apart: such a pair that is larger is alone.
    """
    pairs: dict[str, list[str]] = {}
    for name in sizes:
        pairs.setdefault(_ONE_MATRIX.sub(".self_attn.a_proj.", name), []).append(name)
    groups = grouped(pairs.values(), lambda pair: sum(sizes[name] for name in pair), limit)
    return [[name for pair in run for name in pair] for run in groups]


def buckets(tensors: Mapping[str, Tensor], limit_bytes: int) -> tuple[Bucket, ...]:
    """All of `tensors` in buckets of at most `limit_bytes`."""
    sizes = {name: one.nbytes for name, one in tensors.items()}
    return tuple(
        Bucket(
            names=tuple(run),
            dtypes=tuple(str(tensors[name].dtype).removeprefix("torch.") for name in run),
            shapes=tuple(tuple(tensors[name].shape) for name in run),
        )
        for run in bucket_names(sizes, limit_bytes)
    )


def flatten_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """Their bytes, uint8 [n]."""
    return torch.cat([tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors])
