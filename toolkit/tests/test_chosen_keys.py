"""Positions to bits and back, at any length and from any token on."""

import numpy as np
import pytest

from rlcore_toolkit import packed_keys, unpacked_keys

INDEXERS, TOP = 3, 5


def _drawn(tokens: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.int64]]:
    """For each token up to `TOP` of the positions up to its own, then -1, by chance and in any order."""
    draw = np.random.default_rng(0)
    keys = np.full((tokens, INDEXERS, TOP), -1)
    for token in range(tokens):
        for indexer in range(INDEXERS):
            some = draw.permutation(token + 1)[:TOP]
            keys[token, indexer, : len(some)] = some
    return keys


@pytest.mark.parametrize("tokens", [0, 1, 8, 9, 130])
def test_what_is_packed_comes_back(tokens: int) -> None:
    keys, width = _drawn(tokens), 20
    data = b"".join(packed_keys(keys))
    assert len(data) == INDEXERS * sum(place // 8 + 1 for place in range(tokens))
    bits = np.unpackbits(unpacked_keys(data, INDEXERS, width), axis=-1, bitorder="little")
    assert bits.shape == (tokens, INDEXERS, 8 * width)
    for token, indexer in np.ndindex(tokens, INDEXERS):
        expected = {key for key in keys[token, indexer].tolist() if key >= 0}
        assert set(bits[token, indexer].nonzero()[0].tolist()) == expected


def test_tokens_may_be_packed_one_by_one_and_unpacked_in_part() -> None:
    keys = _drawn(20)
    apart = [packed_keys(keys[place : place + 1], place)[0] for place in range(20)]
    assert apart == packed_keys(keys)
    assert unpacked_keys(b"".join(apart), INDEXERS, 1).tolist() == [
        token[:, :1].tolist() for token in unpacked_keys(b"".join(apart), INDEXERS, 3)
    ]


def test_no_token_has_a_key_behind_itself() -> None:
    assert packed_keys(np.array([[[0, 3, 4, -2]]]), 3) == [bytes([0b1001])]


def test_half_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="5 bytes are no whole tokens of 3 indexers"):
        unpacked_keys(bytes(5), INDEXERS, 1)
