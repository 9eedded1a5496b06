"""The keys that sparse attention chose for each token, as the bits of `rlcore.INDEXER_TOPK`.

The token at position p of a sample sees the positions 0 … p. So it has p // 8 + 1 bytes for each indexer: bit
b of byte w stands for position 8w + b. The n tokens of a sample have about n² / 16 bytes an indexer, however
many keys each of them chose.
"""

from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 64
"""Tokens whose bits are one matrix."""


def packed_keys(keys: NDArray[Any], first: int = 0) -> list[bytes]:
    """The bytes of each token: `keys` [tokens, indexers, K] are positions, of tokens at `first` and after it.

    What is below 0, or behind a token, stands for no key.
    """
    return [
        one
        for low in range(0, len(keys), _AT_ONCE)
        for one in _packed(keys[low : low + _AT_ONCE], first + low)
    ]


def _packed(keys: NDArray[Any], first: int) -> list[bytes]:
    places = first + np.arange(len(keys))
    sees = (keys >= 0) & (keys <= places[:, None, None])
    tokens, indexers, _ = np.nonzero(sees)
    is_chosen = np.zeros((*keys.shape[:2], int(places[-1]) + 1), dtype=bool)
    is_chosen[tokens, indexers, keys[sees]] = True
    bits = np.packbits(is_chosen, axis=-1, bitorder="little")
    return [token[:, : place // 8 + 1].tobytes() for token, place in zip(bits, places.tolist(), strict=True)]


def unpacked_keys(data: bytes, indexers: int, width: int) -> NDArray[np.uint8]:
    """The bits of the tokens from the first one on, [tokens, indexers, `width`]; zeros behind each token.

    `width`: bytes; the bits of more positions are left out. ValueError where `data` ends within a token.
    """
    most = isqrt(16 * len(data) // indexers)  # n tokens have n² / 16 bytes at least
    ends = indexers * np.cumsum(np.arange(most) // 8 + 1)
    tokens = int(np.searchsorted(ends, len(data), side="right"))
    if len(data) != (ends[tokens - 1] if tokens else 0):
        raise ValueError(f"{len(data)} bytes are no whole tokens of {indexers} indexers")
    keys = np.zeros((tokens, indexers, max(width, -(-tokens // 8))), dtype=np.uint8)
    is_there = np.arange(keys.shape[-1]) < np.arange(tokens)[:, None, None] // 8 + 1
    keys[np.broadcast_to(is_there, keys.shape)] = np.frombuffer(data, dtype=np.uint8)
    return keys[..., :width]
