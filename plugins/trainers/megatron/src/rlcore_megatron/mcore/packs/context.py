"""Context parallelism: each rank holds a part of every pack, and sees keys and values of all of it.

A pack is cut into twice as many runs of equal length as there are ranks; a rank takes one from the front and
one from the back, so that causal attention costs every rank the same (Llama 3, arXiv:2407.21783, 3.3.2).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from torch import Tensor

from rlcore_megatron.mcore import parallel
from rlcore_toolkit import Piece


@dataclass(frozen=True)
class Share:
    """What `rank` of `ranks` holds of a pack of `total` tokens, which is a multiple of 2 · ranks."""

    total: int
    ranks: int
    rank: int

    @classmethod
    def of_process(cls, total: int) -> Share | None:
        """The share of this process; None where nothing is shared."""
        ranks = parallel.context_size()
        return cls(total, ranks, parallel.context_rank()) if ranks > 1 else None

    @property
    def runs(self) -> tuple[range, range]:
        """Places in the pack of the rank's tokens, in the order that it holds them."""
        length, rest = divmod(self.total, 2 * self.ranks)
        assert rest == 0
        first, second = self.rank, 2 * self.ranks - 1 - self.rank
        return range(first * length, (first + 1) * length), range(second * length, (second + 1) * length)

    @cached_property
    def places(self) -> Tensor:
        """int64 [total / ranks]: where the rank's tokens stand in the pack."""
        return torch.tensor([place for run in self.runs for place in run])

    @cached_property
    def all_places(self) -> Tensor:
        """int64 [total]: the `places` of all ranks, one after another."""
        return torch.cat([Share(self.total, self.ranks, rank).places for rank in range(self.ranks)])

    @cached_property
    def order(self) -> Tensor:
        """int64 [total]: of each place in the pack, where it lies in the ranks' parts, one after another."""
        return torch.argsort(self.all_places)

    def pieces(self, starts: list[int]) -> tuple[Piece, ...]:
        """The rank's pieces of sequences that begin at `starts`; each ends at the next one, or at `total`.

        A piece starts at a place among the rank's tokens, what it sees before itself at one of the pack.
        """
        pieces, offset = [], 0
        for run in self.runs:
            for start, end in itertools.pairwise(starts):
                low, high = max(start, run.start), min(end, run.stop)
                if low < high:
                    pieces.append((offset + low - run.start, high - low, start, low - start))
            offset += len(run)
        return tuple(pieces)

    def gather(self, x: Tensor) -> Tensor:
        """x [total / ranks, …] of each rank → [total, …] on all of them; gradients are summed over ranks."""
        whole = gather_from_sequence_parallel_region(x.contiguous(), group=parallel.context_group())
        assert isinstance(whole, Tensor)
        return self.in_order(whole)

    def in_order(self, parts: Tensor) -> Tensor:
        """parts [total, …] of the ranks, one after another → the same in the order of the pack."""
        return parts.index_select(0, self._on(parts.device)[0])

    def in_parts(self, whole: Tensor) -> Tensor:
        """The way back."""
        return whole.index_select(0, self._on(whole.device)[1])

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """`order` and `all_places`: one copy for all layers, which keep them for their backward passes."""
        if device not in self._copies:
            self._copies[device] = (self.order.to(device), self.all_places.to(device))
        return self._copies[device]

    @cached_property
    def _copies(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}
