"""Bins under a token budget, and balance over ranks."""

import random

import pytest

from rlcore import DataError, even_shares
from rlcore_toolkit.bins import check_longest, equal_bins, micro_batches


def _loads(bins: list[list[int]], lengths: list[int]) -> list[int]:
    return [sum(lengths[i] for i in bin) for bin in bins]


def test_every_sample_is_in_one_bin_within_the_budget() -> None:
    draw = random.Random(0)
    for _ in range(50):
        lengths = [draw.randint(1, 40) for _ in range(draw.randint(0, 60))]
        bins = micro_batches(lengths, 100)
        assert sorted(i for bin in bins for i in bin) == list(range(len(lengths)))
        assert all(load <= 100 for load in _loads(bins, lengths))
        assert bins == micro_batches(lengths, 100)
        assert all(bin == sorted(bin) and bin for bin in bins)
        assert len(bins) <= -(-sum(lengths) // 100) * 1.5 + 1


def test_bins_are_balanced() -> None:
    assert sorted(_loads(micro_batches([4, 4, 4, 4, 4, 4], 12), [4] * 6)) == [12, 12]
    lengths = [10] * 11
    assert sorted(_loads(micro_batches(lengths, 100), lengths)) == [50, 60]


def test_bins_are_balanced_by_cost_within_the_budget() -> None:
    draw = random.Random(2)
    for _ in range(50):
        lengths = [draw.randint(1, 90) for _ in range(draw.randint(1, 60))]
        costs = [length + length**2 / 30 for length in lengths]
        bins = micro_batches(lengths, 100, costs)
        assert sorted(i for bin in bins for i in bin) == list(range(len(lengths)))
        assert all(load <= 100 for load in _loads(bins, lengths))
    lengths, costs = [40, 10, 10, 10, 10], [16.0, 1.0, 1.0, 1.0, 1.0]
    assert micro_batches(lengths, 40, costs) == [[0], [1, 2, 3, 4]]
    assert micro_batches([30, 20, 20, 10], 60, [9.0, 4.0, 4.0, 1.0]) == [[0], [1, 2, 3]]
    assert micro_batches([30, 20, 20, 10], 60) == [[0, 3], [1, 2]]


def test_a_sample_over_the_budget_has_a_bin_of_its_own() -> None:
    bins = micro_batches([5, 30, 5], 12)
    assert [1] in bins
    assert len(bins) == 2


def test_a_sample_over_the_context_is_refused() -> None:
    with pytest.raises(DataError, match=r"30 tokens, but the model takes at most 20"):
        check_longest([5, 30, 5], 20)


def test_balance_gives_each_rank_nearly_the_same_tokens() -> None:
    draw = random.Random(1)
    lengths = [draw.randint(1, 100) for _ in range(64)]
    parts = even_shares(lengths, 4)
    loads = _loads(parts, lengths)
    assert sorted(i for part in parts for i in part) == list(range(64))
    assert max(loads) - min(loads) <= 20
    assert [len(part) for part in even_shares([7] * 8, 4)] == [2, 2, 2, 2]
    assert even_shares([3], 2) == [[0], []]


def test_equal_bins_divides_and_then_adds_empty_ones() -> None:
    lengths = [5, 6, 7]
    bins = micro_batches(lengths, 100)
    assert equal_bins(bins, lengths, 1) == [[0, 1, 2]]
    assert equal_bins(bins, lengths, 2) == [[2], [0, 1]]
    assert equal_bins(bins, lengths, 5) == [[2], [1], [0], [], []]
    assert equal_bins([], [], 2) == [[], []]
