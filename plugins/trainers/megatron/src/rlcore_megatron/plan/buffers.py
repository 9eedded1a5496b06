"""megatron-core's parameter and gradient buffers under the distributed optimizer, element by element.

`_ParamAndGradBuffer` of megatron.core.distributed.param_and_grad_buffer: parameters in reverse order, each
aligned; the end of a bucket padded, so that it divides evenly; one bucket, but for a shared embedding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlcore_megatron.plan.weights import Weight

ALIGNMENT, BUCKET = 64, 128


@dataclass(frozen=True)
class Buffer:
    """`numel` elements, padding included. `states`: most parameters of them that one rank optimizes."""

    numel: int
    states: int


def lay_out(weights: Sequence[Weight], ranks: int) -> Buffer:
    """The buffer of `weights`, whose optimizer states `ranks` ranks share."""
    buckets = _buckets(weights, math.lcm(ranks, BUCKET))
    states = [0] * ranks
    for start, end, places in buckets:
        share = (end - start) // ranks
        for first, last in places:
            for rank in range((first - start) // share, min(ranks - 1, (last - 1 - start) // share) + 1):
                low = start + rank * share
                states[rank] += max(0, min(last, low + share) - max(first, low))
    return Buffer(numel=buckets[-1][1] if buckets else 0, states=max(states))


Bucket = tuple[int, int, list[tuple[int, int]]]
"""Start, end, and the places of the parameters."""


def _buckets(weights: Sequence[Weight], divisor: int) -> list[Bucket]:
    buckets: list[Bucket] = []
    begin = position = 0
    places: list[tuple[int, int]] = []

    def close() -> None:
        nonlocal begin, position, places
        end = -(-position // divisor) * divisor
        buckets.append((begin, end, places))
        begin, position, places = end, end, []

    for weight in reversed(weights):
        position = -(-position // ALIGNMENT) * ALIGNMENT
        if weight.is_shared and places:
            close()
        places.append((position, position + weight.numel))
        position += weight.numel
        if weight.is_shared:
            close()
    if places:
        close()
    return buckets
