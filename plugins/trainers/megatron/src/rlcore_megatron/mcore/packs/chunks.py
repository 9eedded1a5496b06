"""A pack cut into chunks, for layers that carry a state from token to token.

Each run of tokens is cut by itself, so no chunk holds tokens of two sequences. A run may go on from another
one: the responses of a group from their shared prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from rlcore import token_ranges

CHUNK = 64
"""Tokens of a chunk: transformers' and FLA's size."""

Run = tuple[int, int, int]
"""(start, length, start of the run that it goes on from; -1: it begins a sequence)."""


@dataclass(frozen=True)
class Level:
    """Runs whose states are advanced together: first those that begin sequences, then those that go on.

    `before` int64 [runs]: the places, among the runs of the level above, of those that they go on from; None
    on the first level. `widths`: for each step, how many runs have a chunk. The runs with the most chunks
    come first, so the runs of a step are always the first ones. `tokens` int64 [T] and `ends` int64
    [runs + 1]: the tokens of the runs, run after run, and where each run begins and ends among them.
    """

    before: Tensor | None
    widths: tuple[int, ...]
    tokens: Tensor
    ends: Tensor


class Chunks:
    """How the `total` tokens of a pack are cut.

    Chunks are numbered level by level and step by step, so a step of all runs of a level is one slice.
    """

    def __init__(
        self, runs: Sequence[Run], total: int, size: int = CHUNK, device: torch.device | None = None
    ) -> None:
        """`device`: of the tensors below, each of which is made once for all layers."""
        self.total = total
        self._device = device
        self._taps: dict[int, Tensor] = {}
        self._reaching: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self.size = min(size, max((length for _, length, _ in runs), default=1))
        self._runs = runs
        self.levels, self._order = self._levels()

    @cached_property
    def index(self) -> Tensor:
        """int64 [chunks, size]: the token in each place; `total` where there is none."""
        rows = torch.tensor(self._order).view(-1, 2)
        places = rows[:, :1] + torch.arange(self.size)
        return torch.where(torch.arange(self.size) < rows[:, 1:], places, self.total).to(self._device)

    @cached_property
    def inverse(self) -> Tensor:
        """int64 [total]: the place of each token in the flattened chunks."""
        flat = self.index.flatten()
        places = flat.new_empty(self.total + 1)
        places[flat] = torch.arange(flat.numel(), device=flat.device)
        return places[:-1]

    @cached_property
    def places(self) -> Tensor:
        """int64 [total]: the place of each token among those of the levels, level after level."""
        return torch.cat([level.tokens for level in self.levels]).argsort()

    def taps(self, count: int) -> Tensor:
        """int64 [count, total]: the tokens 1 … `count` before each token in its sequence, else `total`."""
        if count in self._taps:
            return self._taps[count]
        previous = torch.arange(-1, self.total)
        previous[self.total] = self.total
        ends = {start: start + length - 1 for start, length, _ in self._runs}
        for start, _, before in self._runs:
            previous[start] = self.total if before < 0 else ends[before]
        rows = [previous]
        for _ in range(count - 1):
            rows.append(previous[rows[-1]])
        self._taps[count] = torch.stack(rows)[:, : self.total].to(self._device)
        return self._taps[count]

    def reaching(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The runs, each behind the `count` tokens before it in its sequence, for kernels without states.

        int64: the tokens [S]; where each run begins and ends among them [runs + 1]; the place of each of the
        pack's own tokens [total].
        """
        if count not in self._reaching:
            taps, own, parts = self.taps(count).cpu(), torch.empty(self.total, dtype=torch.int64), []
            ends = [0]
            for start, length, _ in self._runs:
                before = taps[:, start].flip(0) if length else taps[:, 0][:0]
                parts += [before[before < self.total], torch.arange(start, start + length)]
                ends.append(ends[-1] + len(parts[-2]) + length)
                own[start : start + length] = torch.arange(ends[-1] - length, ends[-1])
            tokens, edges = torch.cat(parts), torch.tensor(ends).unique()
            self._reaching[count] = tokens.to(self._device), edges.to(self._device), own.to(self._device)
        return self._reaching[count]

    def _levels(self) -> tuple[list[Level], list[tuple[int, int]]]:
        """The levels, and (start, tokens) of each chunk in order."""
        levels: list[Level] = []
        chunks: list[tuple[int, int]] = []
        above: dict[int, int] = {-1: 0}
        waiting = [run for run in self._runs if run[1] > 0]
        while waiting:
            now = sorted((run for run in waiting if run[2] in above), key=lambda run: -self._count(run))
            assert now, "a run goes on from one of its pack"
            places = torch.tensor([above[run[2]] for run in now], device=self._device) if levels else None
            widths = [sum(self._count(run) > step for run in now) for step in range(self._count(now[0]))]
            for step, width in enumerate(widths):
                done = step * self.size
                chunks += [(start + done, min(length - done, self.size)) for start, length, _ in now[:width]]
            starts, lengths, _ = torch.tensor(now).unbind(1)
            tokens, ends = token_ranges(starts, lengths), functional.pad(lengths.cumsum(0), (1, 0))
            levels.append(Level(places, tuple(widths), tokens.to(self._device), ends.to(self._device)))
            waiting = [run for run in waiting if run[2] not in above]
            above = {run[0]: place for place, run in enumerate(now)}
        return levels, chunks

    def _count(self, run: Run) -> int:
        return -(-run[1] // self.size)
