"""What every layer of one forward shares about its packed sequences."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor
from torch.nn import functional

from rlcore import token_ranges
from rlcore_megatron.mcore.packs.chunks import Chunks
from rlcore_megatron.mcore.packs.context import Share
from rlcore_toolkit import Piece

_ATTRIBUTE = "rlcore_pack"


def keep_pieces(params: PackedSeqParams, pieces: Sequence[Piece], total: int) -> None:
    """Let attention read `pieces`, which fill the `total` tokens of a pack, with its `params`."""
    setattr(
        params, _ATTRIBUTE, Sequences(params.cu_seqlens_q, int(params.max_seqlen_q), total, tuple(pieces))
    )


def keep_share(params: PackedSeqParams, share: Share) -> None:
    """Let attention, with `params` of a whole pack, compute the part of `share`."""
    starts = params.cu_seqlens_q
    pieces = share.pieces(starts.tolist())
    length = share.total // share.ranks
    setattr(params, _ATTRIBUTE, Sequences(starts, int(params.max_seqlen_q), length, pieces, share))


@dataclass(eq=False)
class Sequences:
    """What all layers of one forward share about their pack of `total` tokens.

    `starts` int32 [N + 1]: where each of the N sequences starts, and `total`. `pieces`: of a pack with shared
    prompts; none where the sequences are all that there is. `share`: of a pack that is divided over ranks, of
    which `total` and `pieces` then are this rank's, and `starts` the whole's.
    """

    starts: Tensor
    longest: int
    total: int
    pieces: tuple[Piece, ...] = ()
    share: Share | None = None
    tables: dict[tuple[Hashable, torch.dtype], tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Cosine and sine of each token's place in its sequence, made once a forward."""
    windows: dict[int, Sequences] = field(default_factory=dict)
    """What `within` made."""
    choices: dict[int, Tensor] = field(default_factory=dict)
    """The keys that a layer's indexer chose, by its number, for the layers that share them."""
    replayed: Tensor | None = None
    """The keys that an engine chose, in host memory: uint8 [total, indexers, W], a bit for each position."""

    @classmethod
    def of(cls, params: PackedSeqParams, total: int) -> Sequences:
        """The pack of `params`, made once and kept with it. Its sequences must fill the `total` tokens."""
        sequences = getattr(params, _ATTRIBUTE, None)
        if sequences is None:
            starts = params.cu_seqlens_q if params.cu_seqlens_q_padded is None else params.cu_seqlens_q_padded
            sequences = cls(starts, int(params.max_seqlen_q), total)
            setattr(params, _ATTRIBUTE, sequences)
        assert isinstance(sequences, Sequences)
        assert sequences.total == total
        return sequences

    def within(self, window: int) -> Sequences:
        """The pack for layers whose tokens see `window` tokens, themselves included; made once a forward.

        Its pieces are of at most `window` tokens, so that none sees more than `window` - 1 before itself, and
        those are one run.
        """
        if window >= self.longest:
            return self
        if window not in self.windows:
            pieces = tuple(self._cut(window))
            self.windows[window] = Sequences(self.starts, self.longest, self.total, pieces, self.share)
        return self.windows[window]

    def _cut(self, window: int) -> Iterator[Piece]:
        for start, length, before_start, before in self.pieces or self._whole():
            # what is seen lies in the whole pack, of which a rank has a share
            own = start if self.share is None else before_start + before
            seen = min(before, window - 1)
            yield start, min(length, window), before_start + before - seen, seen
            for offset in range(window, length, window):
                size = min(window, length - offset)
                yield start + offset, size, own + offset - window + 1, window - 1

    @cached_property
    def positions(self) -> Tensor:
        """int64 [total], on the device of `starts`."""
        if self.pieces:
            return self._positions_of_pieces()
        places = torch.arange(self.total, device=self.starts.device)
        owner = torch.searchsorted(self.starts[1:].long(), places, right=True)
        return places - self.starts.long()[owner]

    @cached_property
    def parts(self) -> list[Pieces]:
        """The pieces of equal shape together, in the order of `order`."""
        return [
            Pieces(
                len(members),
                length,
                before,
                _runs([start for _, start in members], before, self.starts.device) if before else None,
            )
            for (length, before), members in self._groups
        ]

    @cached_property
    def order(self) -> Tensor | None:
        """int64 [total]: the tokens, part after part; None where they lie so already."""
        starts = torch.tensor([start for _, members in self._groups for start, _ in members])
        lengths = torch.tensor([length for (length, _), members in self._groups for _ in members])
        order = token_ranges(starts, lengths)
        assert order.numel() == self.total, "the pieces of a pack, padding included, must fill it"
        is_sorted = bool((order == torch.arange(self.total)).all())
        return None if is_sorted else order.to(self.starts.device)

    @cached_property
    def inverse(self) -> Tensor:
        """int64 [total]: undoes `order`."""
        assert self.order is not None
        return torch.empty_like(self.order).scatter_(0, self.order, torch.arange(self.total).to(self.order))

    @cached_property
    def seen(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where the pieces of a shared pack end, where what they see ends, and int64 places of the latter.

        The ends are int32 [pieces + 1], from 0 on; a piece sees a run of the whole pack, up to itself.
        """
        pieces = torch.tensor(self.pieces, device=self.starts.device)
        _, lengths, before, count = pieces.unbind(1)
        ends_q, ends_k = (functional.pad(x.cumsum(0), (1, 0)).int() for x in (lengths, lengths + count))
        return ends_q, ends_k, token_ranges(before, lengths + count)

    @cached_property
    def chunks(self) -> Chunks:
        """The whole pack in chunks, for layers that carry a state from token to token."""
        runs = [
            (start, length, before_start if before else -1)
            for start, length, before_start, before in (self.share is None and self.pieces) or self._whole()
        ]
        total = self.total if self.share is None else self.share.total
        return Chunks(runs, total, device=self.starts.device)

    @cached_property
    def reach(self) -> int:
        """The most tokens of its sequence that a query sees, itself among them."""
        return max((before + length for _, length, _, before in self.pieces or self._whole()), default=0)

    def views(self, queries: range) -> Sequence[View]:
        """What the tokens `queries` see, all of the pack's or a run of them; made once for all layers."""
        if queries not in self._views:
            self._views[queries] = self._views_of(queries)
        return self._views[queries]

    def _views_of(self, queries: range) -> Sequence[View]:
        groups: dict[tuple[int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
        for start, length, before_start, before in self.pieces or self._whole():
            low, high = max(start, queries.start), min(start + length, queries.stop)
            # keys are those of the whole pack, where the rank's own tokens stand elsewhere
            own = start if self.share is None else before_start + before
            if low < high:
                shape = (high - low, low - start, before)
                groups[shape].append((low - queries.start, before_start, own))
        device = self.starts.device
        views = []
        for (count, offset, before), members in groups.items():
            first, shared, own_starts = (torch.tensor(x)[:, None] for x in zip(*members, strict=True))
            keys = (shared + torch.arange(before), own_starts + torch.arange(offset + count))
            rows = (first + torch.arange(count)).to(device)
            views.append(View(rows, torch.cat(keys, dim=1).to(device), before + offset))
        return views

    @cached_property
    def _views(self) -> dict[range, Sequence[View]]:
        return {}

    @cached_property
    def _groups(self) -> list[tuple[tuple[int, int], list[tuple[int, int]]]]:
        """((length, length before it), [(start, start before it)]) of the pieces of equal shape."""
        groups: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for start, length, before_start, before in self.pieces or self._whole():
            groups[length, before].append((start, before_start))
        return list(groups.items())

    def _whole(self) -> list[Piece]:
        starts = self.starts.tolist()
        return [(start, end - start, 0, 0) for start, end in itertools.pairwise(starts) if end > start]

    def _positions_of_pieces(self) -> Tensor:
        _, lengths, _, before = torch.tensor(sorted(self.pieces)).unbind(1)
        return token_ranges(before, lengths).to(self.starts.device)


@dataclass(frozen=True)
class Pieces:
    """`count` pieces of `length` tokens; each sees `before` more: those of `index` int64 [count * before]."""

    count: int
    length: int
    before: int
    index: Tensor | None


@dataclass(frozen=True)
class View:
    """Runs of n queries each, and the tokens of their sequences from the first one up to the last query.

    `queries` int64 [runs, n]; `keys` int64 [runs, S]: places in the whole pack. Query i sees the keys
    0 … `first` + i, so a key's place in its row is its position in the sequence.
    """

    queries: Tensor
    keys: Tensor
    first: int


def _runs(starts: list[int], length: int, device: torch.device) -> Tensor:
    begin = torch.tensor(starts)
    return token_ranges(begin, torch.full_like(begin, length)).to(device)
