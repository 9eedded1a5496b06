"""Attention over a pack: each sequence by itself, by transformers' own attention.

A pack is one row of tokens. Its attention would be that of one sequence, with a mask of the pack's size
squared. Instead each piece is cut out, a sequence or a response beside the prompt that it shares, and
neighbors of one shape are a batch. The mask of a layer (causal, a window) comes from transformers, evaluated
for one piece of each shape. In half precision on a GPU, one call of flash attention takes all sequences.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from rlcore_toolkit import Piece, fits_varlen, varlen_attention

NAME = "rlcore_blocks"
"""What transformers calls this attention."""

_QUERIES = 64
"""The tokens, spread over a piece and at its end, that show what all tokens of a layer see."""

_PACK: ContextVar[tuple[Sequence[Piece], str]] = ContextVar("the pieces, and the attention of each")


class NoPackError(ValueError):
    """A layer whose attention is not that of a pack."""


class PackMask:
    """What a layer's tokens see, where a tensor of the size of the pack squared would stand.

    `pieces`: of the pack, one after another; what a piece sees before itself is the whole piece that ends
    the last run without such. `plain`: the name of the attention that computes each.
    """

    def __init__(self, sees: Callable[..., Tensor], dtype: torch.dtype, device: torch.device) -> None:
        """`sees`: from places (batch, head, query, key) in the pack to whether the query sees the key."""
        pack = _PACK.get(None)
        if pack is None:
            raise NoPackError("this attention takes packs alone")
        self.pieces, self.plain = pack
        self._sees, self._dtype, self._device = sees, dtype, device
        self._masks: dict[tuple[int, int], Tensor | None] = {}

    @cached_property
    def before(self) -> int | None:
        """How many tokens before itself each token sees, -1: all; None: it sees others than the last ones.

        Some tokens of the longest piece show it.
        """
        start, length, *_ = max(self.pieces, key=lambda piece: piece[1])
        keys = torch.arange(length, device=self._device)
        spread = torch.linspace(0, length - 1, min(length, _QUERIES), device=self._device).long()
        queries = torch.cat([keys[-_QUERIES:], spread]).unique()
        zero = keys.new_zeros(())
        seen = self._sees(zero, zero, start + queries[:, None], start + keys[None, :])
        most, behind = int(seen[-1].sum()), queries[:, None] - keys
        if not torch.equal(seen.expand(behind.shape), (behind >= 0) & (behind < most)):
            return None
        return -1 if most == length else most - 1

    @cached_property
    def ends(self) -> Tensor:
        """Where each piece begins, and the end of the last, int32."""
        lengths = [piece[1] for piece in self.pieces]
        return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=self._device)

    def runs(self) -> Iterator[tuple[Piece, int]]:
        """The first of each run of pieces that have one shape and see the same, and how many they are."""
        for _, same in itertools.groupby(self.pieces, key=lambda piece: piece[1:]):
            run = list(same)
            yield run[0], len(run)

    def mask(self, piece: Piece) -> Tensor | None:
        """What its tokens see, as `plain` takes it; None: causal, which sdpa knows."""
        start, length, before_start, before = piece
        if (length, before) not in self._masks:
            # Transformers sees a sequence in what is seen and the tokens right after it: the longest branch.
            first = before_start if before else start
            places = torch.arange(first, first + before + length, device=self._device)
            zero = places.new_zeros(())
            seen = self._sees(zero, zero, places[before:, None], places[None, :])
            self._masks[length, before] = self._as_plain(seen.expand(length, before + length))
        return self._masks[length, before]

    def _as_plain(self, seen: Tensor) -> Tensor | None:
        if self.plain == "sdpa" and torch.equal(seen, torch.ones_like(seen).tril()):
            return None
        # of booleans, sdpa would keep a copy as numbers for each layer
        lowest = torch.finfo(self._dtype).min
        hidden = torch.zeros(seen.shape, dtype=self._dtype, device=self._device)
        return hidden.masked_fill_(~seen, lowest)[None, None]


def register(name: str = NAME, mask: type[PackMask] = PackMask) -> None:
    """Let transformers know this attention by `name`."""
    AttentionInterface.register(name, _attention)
    AttentionMaskInterface.register(name, partial(_mask, mask))


@contextmanager
def packed(pieces: Sequence[Piece], plain: str) -> Iterator[None]:
    """Within, models with this attention read a pack of these `pieces`."""
    token = _PACK.set((pieces, plain))
    try:
        yield
    finally:
        _PACK.reset(token)


def _mask(kind: type[PackMask], *, mask_function: Callable[..., Tensor], **options: Any) -> PackMask:
    if options.get("use_vmap"):
        raise NoPackError("a mask of another form")
    return kind(mask_function, options["dtype"], options["device"])


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """`query` [1, heads, T, D], `key`, `value` [1, groups, T, D] → [1, T, heads, D]."""
    if not isinstance(attention_mask, PackMask):
        raise NoPackError("the model makes its mask by itself")
    one_call = _flash(module, query, key, value, attention_mask, **options)
    if one_call is not None:
        return one_call, None
    attend = _function(module, attention_mask.plain)
    runs = list(attention_mask.runs())
    sizes = [piece[1] * count for piece, count in runs]
    # `split` of one run would copy it in the backward pass
    parts = [one[0].split(sizes, 1) if len(runs) > 1 else (one.squeeze(0),) for one in (query, key, value)]
    outputs: list[Tensor] = []
    prompt: Sequence[Tensor] = ()
    for (piece, count), *run in zip(runs, *parts, strict=True):
        q, k, v = (one.unflatten(1, (count, piece[1])).transpose(0, 1) for one in run)
        if piece[3]:  # beside the last prompt
            pairs = zip(prompt, (k, v), strict=True)
            k, v = (torch.cat([one.expand(count, -1, -1, -1), own], 2) for one, own in pairs)
        else:
            prompt = k[-1:], v[-1:]
        output, _ = attend(module, q, k, v, attention_mask.mask(piece), **options)
        outputs.append(output.reshape(1, count * piece[1], *output.shape[2:]))
    return torch.cat(outputs, 1) if len(runs) > 1 else outputs[0], None


def _flash(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: PackMask, **options: Any
) -> Tensor | None:
    """The same by one call; None where flash attention is not what the layer computes."""
    q, k, v = (one[0].transpose(0, 1) for one in (query, key, value))
    is_more = options.get("dropout") or any(
        options.get(name) is not None for name in ("softcap", "s_aux", "position_bias")
    )
    if not fits_varlen(q, k, v) or is_more or mask.plain != "sdpa" or any(one[3] for one in mask.pieces):
        return None
    if (before := mask.before) is None:
        return None
    scale = options.get("scaling") or q.shape[-1] ** -0.5
    longest = max(piece[1] for piece in mask.pieces)
    return varlen_attention(q, k, v, mask.ends, mask.ends, longest, scale=scale, before=before)[None]


def _function(module: nn.Module, plain: str) -> Any:
    if plain == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward
    return AttentionInterface()[plain]
