"""Which samples make a micro-batch: balanced bins under a token budget."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlcore import DataError, TrainBatch, even_shares

Bins = list[list[int]]
"""Sample indices, ascending within each bin."""


def rank_bins(
    batch: TrainBatch, budget: int, agree: Callable[[int], int], longest: int | None = None
) -> Bins:
    """The micro-batches of a rank: bins of at most `budget` tokens, none of which cuts a unit of `batch`.

    `agree`: from the number of bins that this rank needs, at least 1, to that of all ranks. `longest`: tokens
    that the model takes; DataError where a sample has more.
    """
    units, tokens = batch.units(), batch.lengths.tolist()
    check_longest(tokens, longest)
    lengths = [int(length) for length in _summed(tokens, units)]
    costs = _summed(batch.costs, units) if "cost" in batch.per_sample else ()
    bins = micro_batches(lengths, budget, costs)
    divided = equal_bins(bins, costs or lengths, agree(max(1, len(bins))))
    return [sorted(row for place in bin for row in units[place]) for bin in divided]


def in_order(values: Tensor, batch: TrainBatch, bins: Sequence[Sequence[int]]) -> Tensor:
    """Values of the response tokens of the samples in `bins`, one after another → in `batch`'s order."""
    slots = torch.split(torch.arange(len(values)), batch.response_lengths.tolist())
    order = [slots[row] for rows in bins for row in rows]
    out = torch.empty_like(values)
    out[torch.cat(order) if order else slots] = values
    return out


def check_longest(lengths: Sequence[int], longest: int | None) -> None:
    """DataError where a sample has more tokens than the model takes."""
    if longest is not None and lengths and max(lengths) > longest:
        raise DataError(f"A sample has {max(lengths)} tokens, but the model takes at most {longest}.")


def micro_batches(lengths: Sequence[int], budget: int, costs: Sequence[float] = ()) -> Bins:
    """Bins of at most `budget` tokens each; deterministic. What is longer gets a bin of its own.

    They have nearly equal numbers of tokens, or as nearly equal `costs` as the budget allows.
    """
    bins = _first_fit(lengths, budget)
    even = _spread_costs(lengths, costs, len(bins), budget) if costs else even_shares(lengths, len(bins))
    # Bins of equal sums may exceed the budget, which those of first fit keep.
    fits = all(len(bin) <= 1 or sum(lengths[i] for i in bin) <= budget for bin in even)
    return even if fits else [sorted(bin) for bin in bins]


def equal_bins(bins: Bins, lengths: Sequence[float], count: int) -> Bins:
    """`bins` divided further, so that there are `count`; empty ones where no bin can be divided.

    `lengths`: what the parts of a bin get equally much of, tokens or another cost.
    """
    bins = list(bins)
    while len(bins) < count:
        heaviest = max(
            (b for b in bins if len(b) > 1), key=lambda b: sum(lengths[i] for i in b), default=None
        )
        if heaviest is None:
            bins.append([])
            continue
        place = bins.index(heaviest)
        parts = even_shares([lengths[i] for i in heaviest], 2)
        bins[place : place + 1] = [[heaviest[i] for i in part] for part in parts]
    return bins


def _longest_first(lengths: Sequence[float]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def _first_fit(lengths: Sequence[int], budget: int) -> Bins:
    """Bins of at most `budget` tokens each, or of one sample: each goes into the first that has room."""
    bins: Bins = []
    room: list[int] = []
    for i in _longest_first(lengths):
        place = next((b for b, left in enumerate(room) if lengths[i] <= left), None)
        if place is None:
            bins.append([i])
            room.append(budget - lengths[i])
        else:
            bins[place].append(i)
            room[place] -= lengths[i]
    return bins


def _spread_costs(lengths: Sequence[int], costs: Sequence[float], count: int, budget: int) -> Bins:
    """The costliest remaining sample goes to the cheapest bin that has room for it, or else to a new one."""
    bins: Bins = [[] for _ in range(count)]
    loads, room = [0.0] * count, [budget] * count
    for i in _longest_first(costs):
        fitting = [place for place in range(len(bins)) if not bins[place] or room[place] >= lengths[i]]
        if not fitting:
            bins, loads, room = [*bins, []], [*loads, 0.0], [*room, budget]
            fitting = [len(bins) - 1]
        place = min(fitting, key=lambda place: (loads[place], len(bins[place]), place))
        bins[place].append(i)
        loads[place], room[place] = loads[place] + costs[i], room[place] - lengths[i]
    return [sorted(bin) for bin in bins]


def _summed(values: Sequence[float], units: Sequence[Sequence[int]]) -> list[float]:
    """The sum over the rows of each unit."""
    return [sum(values[row] for row in unit) for unit in units]
