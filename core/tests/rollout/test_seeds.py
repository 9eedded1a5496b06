"""Sampling seeds: stable, in range, and different wherever what is sampled differs."""

from itertools import product

from rlcore.rollout.draw import sample_seed


def test_it_never_changes() -> None:
    assert sample_seed(0, "copy:1203", 0, 0, 0) == 684_093_808
    assert sample_seed(7, "row-1", 3, 1, 2) == 390_082_490


def test_every_argument_counts() -> None:
    seeds = [
        sample_seed(run, prompt, index, attempt, draw)
        for run, prompt, index, attempt, draw in product(
            range(3), ["row-1", "row-11", "row-2"], range(12), range(3), range(3)
        )
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
