"""Any causal language model that transformers runs with a plain cache of keys and values: slower than `lean`.

Rows are aligned at their right end, so that each row's next token falls into the same column; the columns
before a row's first token are masked.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from rlcore_local.decoder import PromptTokens

PLAIN_LAYERS = frozenset({"full_attention", "sliding_attention"})


def is_generic(config: Any) -> bool:
    """Whether every layer's memory is keys and values by position (no recurrent state)."""
    text = config.get_text_config()
    plain = set(getattr(text, "layer_types", None) or ["full_attention"]) <= PLAIN_LAYERS
    return plain and not getattr(config, "is_encoder_decoder", False)


def _pad_left(tensor: Tensor, columns: int) -> Tensor:
    """[rows, heads, columns, size] with zero columns put before."""
    missing = columns - tensor.shape[2]
    return torch.cat([tensor.new_zeros(*tensor.shape[:2], missing, tensor.shape[3]), tensor], dim=2)


def _keys(cache: Any) -> list[Tensor]:
    return [layer.keys for layer in cache.layers]


def _values(cache: Any) -> list[Tensor]:
    return [layer.values for layer in cache.layers]


class GenericDecoder:
    """See `decoder.Decoder`. `mask` is 1 where a column holds a token of the row."""

    def __init__(self, model: Any) -> None:
        self.model = model
        # transformers 5.24 calls it so, and warns of the name that it had before
        takes = inspect.signature(model.forward).parameters
        self._cache = "cache" if "cache" in takes else "past_key_values"
        self.device: torch.device = model.device
        self.clear()

    def refresh(self) -> None:
        """See `Decoder.refresh`. The parameters are the model's own."""

    def clear(self) -> None:
        """See `Decoder.clear`."""
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.mask = torch.zeros(0, 0, dtype=torch.int64, device=self.device)

    def _forward(self, ids: Tensor, mask: Tensor, cache: DynamicCache, last_only: bool) -> Tensor:
        # The columns before the first token would be at -1.
        positions = (mask.cumsum(-1) - 1).clamp_(min=0)[:, -ids.shape[1] :]
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1 if last_only else 0,
            **{self._cache: cache},
        )
        logits: Tensor = output.logits
        return logits

    def prefill(self, prompts: Sequence[PromptTokens]) -> tuple[Tensor, list[list[float] | None]]:
        """See `Decoder.prefill`. One prompt at a time, so that no padding enters."""
        logits: list[Tensor] = []
        scores: list[list[float] | None] = []
        for prompt in prompts:
            cache = DynamicCache()
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
        new_keys = [key.expand(copies, -1, -1, -1) for key in _keys(cache)]
        new_values = [value.expand(copies, -1, -1, -1) for value in _values(cache)]
        columns = max(length, self.mask.shape[1])
        if not self.keys:
            self.keys, self.values = new_keys, new_values
        else:
            self.keys = [self._stack(*pair, columns) for pair in zip(self.keys, new_keys, strict=True)]
            self.values = [self._stack(*pair, columns) for pair in zip(self.values, new_values, strict=True)]
        mask = self.mask.new_zeros(len(self.mask) + copies, columns)
        mask[: len(self.mask), columns - self.mask.shape[1] :] = self.mask
        mask[len(self.mask) :, columns - length :] = 1
        self.mask = mask

    @staticmethod
    def _stack(held: Tensor, new: Tensor, columns: int) -> Tensor:
        return torch.cat([_pad_left(held, columns), _pad_left(new, columns)])

    def decode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """See `Decoder.decode`."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], dim=1)
        cache = DynamicCache()
        for index, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            cache.update(key, value, index)
        logits = self._forward(tokens.to(self.device).unsqueeze(1), self.mask, cache, True)[:, -1]
        self.keys = _keys(cache)
        self.values = _values(cache)
        return logits

    def keep(self, order: Sequence[int]) -> None:
        """See `Decoder.keep`. Columns that no row uses any more are dropped."""
        if not order:
            self.clear()
            return
        rows = torch.tensor(list(order), device=self.device)
        mask = self.mask[rows]
        first = int(mask.any(0).int().argmax())
        self.mask = mask[:, first:]
        self.keys = [key[rows, :, first:] for key in self.keys]
        self.values = [value[rows, :, first:] for value in self.values]
