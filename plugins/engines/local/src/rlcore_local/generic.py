"""Any causal language model whose layers keep keys and values, or states that do not grow (gated delta nets).

Slower than `lean`.

Rows are aligned at their right end, so that each row's next token falls into the same column; the columns
before a row's first token are masked. A state has no columns.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicIndexedLayer, DynamicLayer, LinearAttentionLayer

from rlcore_local.decoder import PromptTokens

LINEAR, INDEXED = "linear_attention", "indexed_attention"
KINDS = frozenset({"full_attention", "sliding_attention", INDEXED, LINEAR})
"""Kinds of layers: those that keep keys and values by position, some with keys of an indexer; or a
convolution's state and another."""
Memory = tuple[Tensor, ...]
"""What a layer keeps of its rows."""


def is_generic(config: Any) -> bool:
    """Whether every layer is of one of `KINDS`, and one of them at least keeps keys and values."""
    kinds = set(_kinds(config))
    return kinds <= KINDS and kinds != {LINEAR} and not getattr(config, "is_encoder_decoder", False)


def _kinds(config: Any) -> list[str]:
    text = config.get_text_config()
    return list(getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers)


def _pad_left(tensor: Tensor, columns: int) -> Tensor:
    """[rows, heads, columns, size] with zero columns put before."""
    missing = columns - tensor.shape[2]
    return torch.cat([tensor.new_zeros(*tensor.shape[:2], missing, tensor.shape[3]), tensor], dim=2)


def _memory(layer: Any) -> Memory:
    """Keys, values and an indexer's keys [rows, heads, columns, size]; or a convolution's state and the
    recurrent one.
    """
    if isinstance(layer, LinearAttentionLayer):
        first, second = layer.conv_states[0], layer.recurrent_states[0]
    else:
        first, second = layer.keys, layer.values
    assert first is not None
    assert second is not None
    index = getattr(layer, "indexer_keys", None)  # none where a layer uses another's choice
    return (first, second) if index is None else (first, second, index.unsqueeze(1))


def _filled(kind: str, memory: Memory | None) -> Any:
    """A layer of transformers' cache that holds `memory`; None: it is empty."""
    if kind != LINEAR:
        layer: Any = DynamicIndexedLayer() if kind == INDEXED else DynamicLayer()
        if memory is not None:
            layer.update(*memory[:2])
        if memory is not None and len(memory) > 2:
            layer.update_indexer(memory[2].squeeze(1))
        return layer
    layer = LinearAttentionLayer()
    if memory is not None:
        # Not by `lazy_initialization`, which would fill states of zeros for every layer and token.
        layer.conv_states[0], layer.recurrent_states[0] = memory
        layer.conv_kernel_size[0] = memory[0].shape[-1]
        for is_there in (
            layer.is_conv_states_initialized,
            layer.is_recurrent_states_initialized,
            layer.has_previous_state,
        ):
            is_there[0] = True
    return layer


def _copies(kind: str, part: Tensor, count: int) -> Tensor:
    """`count` rows of a part [1, ...] of a layer's memory. States are written in place, so none is shared."""
    rows = part.expand(count, *part.shape[1:])
    return rows.contiguous() if kind == LINEAR else rows


class GenericDecoder:
    """A `decoder.Decoder`. `mask` is 1 where a column holds a token of the row."""

    def __init__(self, model: Any) -> None:
        self.model = model
        # transformers 5.24 calls it so, and warns of the name that it had before
        takes = inspect.signature(model.forward).parameters
        self._cache = "cache" if "cache" in takes else "past_key_values"
        self._kinds = _kinds(model.config)
        self.device: torch.device = model.device
        self.clear()

    def refresh(self) -> None:
        """Nothing is to be done: the parameters are the model's own."""

    def clear(self) -> None:
        self.memories: list[Memory] = []
        """For each layer, what it keeps of all rows."""
        self.mask = torch.zeros(0, 0, dtype=torch.int64, device=self.device)

    def _forward(self, ids: Tensor, mask: Tensor, cache: DynamicCache, last_only: bool) -> Tensor:
        # The columns before the first token would be at -1.
        positions = (mask.cumsum(-1) - 1).clamp_(min=0)[:, -ids.shape[1] :]
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, self._cache: cache}
        output = self.model(**inputs, use_cache=True, logits_to_keep=1 if last_only else 0)
        logits: Tensor = output.logits
        return logits

    def prefill(self, prompts: Sequence[PromptTokens]) -> tuple[Tensor, list[list[float] | None]]:
        """Takes one prompt at a time, so that no padding enters."""
        logits: list[Tensor] = []
        scores: list[list[float] | None] = []
        for prompt in prompts:
            cache = self._new_cache()
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
        memories = [
            tuple(_copies(kind, part, copies) for part in _memory(layer))
            for kind, layer in zip(self._kinds, cache.layers, strict=True)
        ]
        if self.memories:
            memories = [
                tuple(self._stack(kind, *pair, columns) for pair in zip(held, added, strict=True))
                for kind, held, added in zip(self._kinds, self.memories, memories, strict=True)
            ]
        self.memories = memories
        mask = self.mask.new_zeros(len(self.mask) + copies, columns)
        mask[: len(self.mask), columns - self.mask.shape[1] :] = self.mask
        mask[len(self.mask) :, columns - length :] = 1
        self.mask = mask

    def _new_cache(self, memories: Sequence[Memory | None] = ()) -> DynamicCache:
        """Transformers' cache with `memories`; without them an empty one."""
        cache = DynamicCache()
        memories = memories or [None] * len(self._kinds)
        cache.layers = [_filled(kind, memory) for kind, memory in zip(self._kinds, memories, strict=True)]
        return cache

    @staticmethod
    def _stack(kind: str, held: Tensor, new: Tensor, columns: int) -> Tensor:
        if kind == LINEAR:
            return torch.cat([held, new])
        return torch.cat([_pad_left(held, columns), _pad_left(new, columns)])

    def decode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], dim=1)
        cache = self._new_cache(self.memories)
        logits = self._forward(tokens.to(self.device).unsqueeze(1), self.mask, cache, True)[:, -1]
        self.memories = [_memory(layer) for layer in cache.layers]
        return logits

    def keep(self, order: Sequence[int]) -> None:
        """Drops the columns that no row uses any more, too."""
        if not order:
            self.clear()
            return
        rows = torch.tensor(list(order), device=self.device)
        mask = self.mask[rows]
        first = int(mask.any(0).int().argmax())
        self.mask = mask[:, first:]
        # a state is a tensor of rows alone
        cut = [(rows,) if kind == LINEAR else (rows, slice(None), slice(first, None)) for kind in self._kinds]
        self.memories = [
            tuple(part[places] for part in memory) for places, memory in zip(cut, self.memories, strict=True)
        ]
