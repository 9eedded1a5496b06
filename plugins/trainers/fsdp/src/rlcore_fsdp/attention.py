"""Attention over a pack: each sequence by itself, by transformers' own attention.

A pack is one row of tokens. Its attention would be that of one sequence, with a mask of the pack's size
squared. Instead each sequence is cut out, and those of one length are a batch. The mask of a layer (causal, a
window) comes from transformers, evaluated for one sequence of each length.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "rlcore_blocks"
"""What transformers calls this attention."""

_LENGTHS: ContextVar[Sequence[int] | None] = ContextVar("lengths of the sequences of the pack", default=None)
_PLAIN: ContextVar[str] = ContextVar("the attention of one sequence", default="sdpa")


class NoPackError(ValueError):
    """A layer whose attention is not that of a pack."""


class PackMask:
    """What a layer's tokens see, where a tensor of the size of the pack squared would stand.

    `lengths`: of the sequences, which lie one after another, those of one length side by side. `plain`: the
    name of the attention that computes each.
    """

    def __init__(self, sees: Callable[..., Tensor], dtype: torch.dtype, device: torch.device) -> None:
        """`sees`: from places (batch, head, query, key) in the pack to whether the query sees the key."""
        lengths = _LENGTHS.get()
        if lengths is None:
            raise NoPackError("this attention takes packs alone")
        self.lengths, self.plain = lengths, _PLAIN.get()
        self._sees, self._dtype, self._device = sees, dtype, device
        self._masks: dict[int, Tensor | None] = {}

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """(start, length, count) of each run of sequences with one length."""
        start = 0
        for length, same in itertools.groupby(self.lengths):
            count = len(list(same))
            yield start, length, count
            start += length * count

    def mask(self, start: int, length: int) -> Tensor | None:
        """That of the sequence at `start`, as `plain` takes it; None: causal, which sdpa knows."""
        if length not in self._masks:
            places = torch.arange(start, start + length, device=self._device)
            zero = places.new_zeros(())
            seen = self._sees(zero, zero, places[:, None], places[None, :])
            self._masks[length] = self._as_plain(seen.expand(length, length))
        return self._masks[length]

    def _as_plain(self, seen: Tensor) -> Tensor | None:
        if self.plain == "sdpa":
            return None if torch.equal(seen, torch.ones_like(seen).tril()) else seen[None, None]
        lowest = torch.finfo(self._dtype).min
        hidden = torch.zeros(seen.shape, dtype=self._dtype, device=self._device)
        return hidden.masked_fill_(~seen, lowest)[None, None]


def register(name: str = NAME, mask: type[PackMask] = PackMask) -> None:
    """Let transformers know this attention by `name`."""
    AttentionInterface.register(name, _attention)
    AttentionMaskInterface.register(name, partial(_mask, mask))


@contextmanager
def packed(lengths: Sequence[int], plain: str) -> Iterator[None]:
    """Within, models with this attention read a pack of sequences of these `lengths`."""
    tokens = _LENGTHS.set(lengths), _PLAIN.set(plain)
    try:
        yield
    finally:
        _LENGTHS.reset(tokens[0])
        _PLAIN.reset(tokens[1])


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
    attend = _function(module, attention_mask.plain)
    runs = list(attention_mask.runs())
    sizes = [length * count for _, length, count in runs]
    # `split` of one run would copy it in the backward pass
    parts = [one[0].split(sizes, 1) if len(runs) > 1 else (one.squeeze(0),) for one in (query, key, value)]
    outputs = []
    for (start, length, count), *run in zip(runs, *parts, strict=True):
        mask = attention_mask.mask(start, length)
        sequences = (one.unflatten(1, (count, length)).transpose(0, 1) for one in run)
        output, _ = attend(module, *sequences, mask, **options)
        outputs.append(output.reshape(1, count * length, *output.shape[2:]))
    return torch.cat(outputs, 1) if len(runs) > 1 else outputs[0], None


def _function(module: nn.Module, plain: str) -> Any:
    if plain == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward
    return AttentionInterface()[plain]
