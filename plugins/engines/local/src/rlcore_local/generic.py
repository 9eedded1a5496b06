"""Any causal language model whose layers keep keys and values, or states that do not grow (gated delta nets).

Slower than `lean`.

Rows are aligned at their right end, so that each row's next token falls into the same column; the columns
before a row's first token are masked. A state has no columns.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer, LinearAttentionLayer

from rlcore_local.decoder import PromptTokens
from rlcore_toolkit import PROBE_TOKENS, BorrowedKernels

LINEAR, INDEXED = "linear_attention", "indexed_attention"
KINDS = frozenset({"full_attention", "sliding_attention", INDEXED, LINEAR})
"""Kinds of layers: those that keep keys and values by position, some with keys of an indexer; or a
convolution's state and another."""


def is_generic(config: Any) -> bool:
    """Whether every layer is of one of `KINDS`, and one of them at least keeps keys and values."""
    kinds = set(_kinds(config))
    return kinds <= KINDS and kinds != {LINEAR} and not getattr(config, "is_encoder_decoder", False)


def _kinds(config: Any) -> list[str]:
    text = config.get_text_config()
    return list(getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers)


def tensors_of(layer: Any) -> Iterator[tuple[Any, str | int]]:
    """Where a layer of transformers' cache has its tensors, by a mapping and a key.

    Keys and values [rows, heads, columns, size] and an indexer's keys [rows, columns, size]; or the state of
    a convolution and the recurrent one, which have no columns.
    """
    if isinstance(layer, LinearAttentionLayer):
        yield layer.conv_states, 0
        yield layer.recurrent_states, 0
        return
    yield vars(layer), "keys"
    yield vars(layer), "values"
    if getattr(layer, "indexer_keys", None) is not None:  # none where a layer uses another's choice
        yield vars(layer), "indexer_keys"


def _empty(kind: str) -> Any:
    """A layer of transformers' cache."""
    if kind == LINEAR:
        return LinearAttentionLayer()
    return DynamicIndexedLayer() if kind == INDEXED else DynamicLayer()


class GenericDecoder:
    """A `decoder.Decoder`. `mask` is 1 where a column holds a token of the row."""

    def __init__(self, model: Any) -> None:
        self.model = model
        # transformers 5.24 calls it so, and warns of the name that it had before
        takes = inspect.signature(model.forward).parameters
        self._argument = "cache" if "cache" in takes else "past_key_values"
        self._kinds = _kinds(model.config)
        self.device: torch.device = model.device
        BorrowedKernels(model).check(self._probe)
        self.clear()

    def refresh(self) -> None:
        """Nothing is to be done: the parameters are the model's own."""

    def clear(self) -> None:
        self.cache: DynamicCache | None = None
        """What each layer keeps of all rows; None: there are no rows."""
        self.mask = torch.zeros(0, 0, dtype=torch.int64, device=self.device)

    @torch.no_grad()
    def _probe(self) -> list[Tensor]:
        """The logits of a prompt, and of one more token."""
        cache = self._empty_cache()
        ids = (
            torch.arange(PROBE_TOKENS + 1, device=self.device)[None]
            % self.model.config.get_text_config().vocab_size
        )
        mask = torch.ones_like(ids)
        prompt = self._forward(ids[:, :-1], mask[:, :-1], cache, False)
        return [prompt, self._forward(ids[:, -1:], mask, cache, False)]

    def _empty_cache(self) -> DynamicCache:
        cache = DynamicCache()
        cache.layers = [_empty(kind) for kind in self._kinds]
        return cache

    def _forward(self, ids: Tensor, mask: Tensor, cache: DynamicCache, last_only: bool) -> Tensor:
        # The columns before the first token would be at -1.
        positions = (mask.cumsum(-1) - 1).clamp_(min=0)[:, -ids.shape[1] :]
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, self._argument: cache}
        output = self.model(**inputs, use_cache=True, logits_to_keep=1 if last_only else 0)
        logits: Tensor = output.logits
        return logits

    def prefill(self, prompts: Sequence[PromptTokens]) -> tuple[Tensor, list[list[float] | None]]:
        """Takes one prompt at a time, so that no padding enters."""
        logits: list[Tensor] = []
        scores: list[list[float] | None] = []
        for prompt in prompts:
            cache = self._empty_cache()
            ids = torch.tensor([list(prompt.tokens)], device=self.device)
            out = self._forward(ids, torch.ones_like(ids), cache, prompt.score_from is None)[0]
            logits.append(out[-1])
            scores.append(self._score(prompt, out))
            if prompt.copies:
                self._append(cache, prompt.copies, len(prompt.tokens))
        return torch.stack(logits), scores

    @staticmethod
    def _score(prompt: PromptTokens, logits: Tensor) -> list[float] | None:
        if prompt.score_from is None:
            return None
        following = prompt.tokens[prompt.score_from + 1 :]
        targets = torch.tensor(following, dtype=torch.int64, device=logits.device)
        logprobs = torch.log_softmax(logits[prompt.score_from : -1].float(), dim=-1)
        scores: list[float] = logprobs.gather(1, targets.unsqueeze(1)).squeeze(1).tolist()
        return scores

    def _append(self, cache: DynamicCache, copies: int, length: int) -> None:
        """Put `copies` rows with the contents of a cache of one row behind the others."""
        columns = max(length, self.mask.shape[1])
        for layer in cache.layers:
            for tensors, key in tensors_of(layer):
                rows = tensors[key].expand(copies, *tensors[key].shape[1:])
                # states are written in place, so none is shared
                tensors[key] = rows.contiguous() if isinstance(layer, LinearAttentionLayer) else rows
        if self.cache is None:
            self.cache = cache
        else:
            for layer, new in zip(self.cache.layers, cache.layers, strict=True):
                for (held, key), (added, _) in zip(tensors_of(layer), tensors_of(new), strict=True):
                    parts = [held[key], added[key]]
                    if not isinstance(layer, LinearAttentionLayer):  # zero columns are put before
                        parts = [functional.pad(x, (0, 0, columns - x.shape[-2], 0)) for x in parts]
                    held[key] = torch.cat(parts)
        mask = self.mask.new_zeros(len(self.mask) + copies, columns)
        mask[: len(self.mask), columns - self.mask.shape[1] :] = self.mask
        mask[len(self.mask) :, columns - length :] = 1
        self.mask = mask

    def decode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], dim=1)
        assert self.cache is not None, "there are rows"
        return self._forward(tokens.to(self.device).unsqueeze(1), self.mask, self.cache, True)[:, -1]

    def keep(self, order: Sequence[int]) -> None:
        """Drops the columns that no row uses any more, too."""
        if not order or self.cache is None:
            self.clear()
            return
        rows = torch.tensor(list(order), device=self.device)
        mask = self.mask[rows]
        first = int(mask.any(0).int().argmax())
        self.mask = mask[:, first:]
        for layer in self.cache.layers:
            for tensors, key in tensors_of(layer):
                kept = tensors[key][rows]
                tensors[key] = kept if isinstance(layer, LinearAttentionLayer) else kept[..., first:, :]
