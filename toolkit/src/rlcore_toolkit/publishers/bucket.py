"""Weights in flattened buckets: the bytes of several tensors, one after the other."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from rlcore import Bucket

T = TypeVar("T")

_ONE_MATRIX = re.compile(r"\.self_attn\.(q_a_proj|kv_a_proj_with_mqa)\.")
"""Down-projections of latent attention. SGLang makes one matrix of a layer's two, and drops one that comes
without the other."""
_OF_ONE_MATRIX = 2


def grouped(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Split `items` into runs whose sizes add up to at most `limit`; a larger item is alone."""
    bucket: list[T] = []
    total = 0
    for item in items:
        more = size(item)
        if bucket and total + more > limit:
            yield bucket
            bucket, total = [], 0
        bucket.append(item)
        total += more
    if bucket:
        yield bucket


def bucketed(
    tensors: Iterable[tuple[str, Tensor]], size: Callable[[str, Tensor], int], limit: int
) -> Iterator[list[tuple[str, Tensor]]]:
    """Named tensors as they come, in runs of at most `limit` bytes, by the `size` of each.

    Two tensors of which SGLang makes one matrix stay together. If the pair exceeds `limit`, it is alone.
    A run that its taker clears is not kept here either, while the tensors of the next one come.
    """
    for run in grouped(_pairs(tensors), lambda some: sum(size(*pair) for pair in some), limit):
        named = [pair for some in run for pair in some]
        run.clear()
        yield named


def _pairs(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    waiting: dict[str, list[tuple[str, Tensor]]] = {}
    for name, tensor in tensors:
        if not _ONE_MATRIX.search(name):
            yield [(name, tensor)]
            continue
        key = _ONE_MATRIX.sub(".self_attn.a_proj.", name)
        waiting.setdefault(key, []).append((name, tensor))
        if len(waiting[key]) == _OF_ONE_MATRIX:
            yield waiting.pop(key)
    yield from waiting.values()  # models with one down-projection alone


def aligned(tensors: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Those of larger elements first, so that in `flatten_tensors` each starts at a multiple of its own.

    SGLang views the bytes of a bucket where they lie; torch refuses an fp32 view at byte 30. Padding would
    not do: for a broadcast, SGLang derives the places from dtypes and shapes.
    """
    return sorted(tensors, key=lambda named: -named[1].element_size())


def bucket_of(tensors: Sequence[tuple[str, Tensor]]) -> Bucket:
    """Describe `tensors`, in their order."""
    return Bucket(
        names=tuple(name for name, _ in tensors),
        dtypes=tuple(str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors),
        shapes=tuple(tuple(tensor.shape) for _, tensor in tensors),
    )


def flatten_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """Their bytes, uint8 [n]."""
    return torch.cat([tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors])
