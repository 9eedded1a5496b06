"""A lean forward for decoders of the Llama form: Llama, Qwen2, Qwen3.

The arithmetic is that of the transformers modules, on their own parameters, with fewer and larger operations:
query, key and value are one matrix, gate and up another, and the cache is allocated ahead and written to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that everyone knows

from rlcore_local.decoder import PromptTokens
from rlcore_toolkit import fits_kernel, for_few_rows, times_transposed

LEAN_FAMILIES = frozenset({"llama", "qwen2", "qwen3"})
PREFILL_TOKENS = 4096
"""Padded tokens that one prefill takes in at most, unless a single prompt is longer."""
FIRST_POSITIONS = 512
"""Positions that the cache has room for from the start, where its rows may become that long."""
SCORE_TOKENS = 512
"""Positions whose logits exist at the same time while a prompt is scored."""


def is_lean(config: Any) -> bool:
    """Whether `LeanDecoder` computes what this transformers config describes."""
    if config.model_type not in LEAN_FAMILIES or config.hidden_act != "silu":
        return False
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    # These two recompute their frequencies from the length at hand, so that no table can be made ahead.
    fixed_rope = config.rope_parameters.get("rope_type") not in (None, "dynamic", "longrope")
    return layer_types == {"full_attention"} and fixed_rope


@dataclass(frozen=True)
class Layer:
    """The parameters of one layer. `qk_norm`: [heads + kv heads, head size], in families that have it."""

    norm_in: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    out: nn.Linear
    norm_mlp: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: nn.Linear


def _join(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Put the matrices of some linears into one, of which their parameters become views.

    A value copied into a parameter afterwards changes the joined matrix, and memory is held once.
    """
    weight = for_few_rows(torch.cat([linear.weight.data for linear in linears]))
    sizes = [linear.out_features for linear in linears]
    for linear, part in zip(linears, torch.split(weight, sizes), strict=True):
        linear.weight.data = part
    if linears[0].bias is None:
        return weight, None
    bias = torch.cat([linear.bias.data for linear in linears])
    for linear, part in zip(linears, torch.split(bias, sizes), strict=True):
        linear.bias.data = part
    return weight, bias


class LeanDecoder:
    """A `decoder.Decoder`. Keys and values live in [layer, 2, row, kv head, position, head size].

    `rows` are in use, and of each the first `used` positions; one may become `longest` tokens long.
    """

    rows: int
    longest: int
    used: int
    cache: Tensor

    def __init__(self, model: Any, context_length: int) -> None:
        config = model.config
        self.model = model
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_size: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.scale = self.head_size**-0.5
        self.eps: float = config.rms_norm_eps
        self.context_length = context_length
        self.embedding: nn.Embedding = model.model.embed_tokens
        self.norm: Tensor = model.model.norm.weight
        self.head: nn.Linear = model.lm_head
        self.dtype, self.device = self.embedding.weight.dtype, self.embedding.weight.device
        self._norm_refs: list[tuple[Tensor, Tensor, Tensor]] = []
        self.layers = [self._layer(layer) for layer in model.model.layers]
        self.refresh()
        self.cos, self.sin = self._rope_table()
        self.clear()

    def _layer(self, module: Any) -> Layer:
        attention, mlp = module.self_attn, module.mlp
        for alone in (attention.o_proj, mlp.down_proj):
            alone.weight.data = for_few_rows(alone.weight.data)
        qkv, qkv_bias = _join([attention.q_proj, attention.k_proj, attention.v_proj])
        gate_up, gate_up_bias = _join([mlp.gate_proj, mlp.up_proj])
        qk_norm = None
        if hasattr(attention, "q_norm"):
            q_weight, k_weight = attention.q_norm.weight, attention.k_norm.weight
            qk_norm = q_weight.new_empty(self.heads + self.kv_heads, self.head_size)
            self._norm_refs.append((qk_norm, q_weight, k_weight))
        return Layer(
            norm_in=module.input_layernorm.weight,
            qkv=qkv,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            out=attention.o_proj,
            norm_mlp=module.post_attention_layernorm.weight,
            gate_up=gate_up,
            gate_up_bias=gate_up_bias,
            down=mlp.down_proj,
        )

    def refresh(self) -> None:
        """Copies the query and key norms, one a head; all other parameters are the model's own."""
        for joined, q_weight, k_weight in self._norm_refs:
            joined[: self.heads] = q_weight
            joined[self.heads :] = k_weight

    def _rope_table(self) -> tuple[Tensor, Tensor]:
        """cos and sin [context, 1, head size] from the model's own rotary module; the sign of the rotation is
        in the first half of sin, so that rotate_half(x) * sin is roll(x) * sin."""
        positions = torch.arange(self.context_length, device=self.device).unsqueeze(0)
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        cos, sin = self.model.model.rotary_emb(like, positions)
        half = self.head_size // 2
        return cos[0].unsqueeze(1), torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1).unsqueeze(1)

    def _empty_cache(self, rows: int, positions: int) -> Tensor:
        # Zeros, because a masked position still enters a product with 0, and 0 times garbage may be NaN.
        shape = (len(self.layers), 2, rows, self.kv_heads, positions, self.head_size)
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        # numpy's are pages that the kernel clears when they are first used, and large ones.
        return torch.from_numpy(np.zeros(shape, f"u{self.dtype.itemsize}")).view(self.dtype)

    def _reserve(self, rows: int, positions: int) -> None:
        """Make room: at once for what the rows may need in the end, up to a limit, and then by doubling."""
        held_rows, held_positions = self.cache.shape[2], self.cache.shape[4]
        if rows > held_rows or positions > held_positions:
            new_rows = held_rows if rows <= held_rows else max(rows, 2 * held_rows)
            new_positions = held_positions
            if positions > held_positions:
                new_positions = max(positions, min(self.longest, max(2 * held_positions, FIRST_POSITIONS)))
            grown = self._empty_cache(new_rows, new_positions)
            grown[:, :, : self.rows, :, : self.used] = self.cache[:, :, : self.rows, :, : self.used]
            self.cache = grown
        self.used = max(self.used, positions)

    def _project(self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values: [..., heads, head size] each, of hidden states [..., H]."""
        normed = self._rms(x, layer.norm_in)
        joined = _linear(normed, layer.qkv, layer.qkv_bias)
        qkv = joined.view(*joined.shape[:-1], -1, self.head_size)
        qk, value = torch.split(qkv, [self.heads + self.kv_heads, self.kv_heads], dim=-2)
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (self.head_size,), None, self.eps) * layer.qk_norm
        qk = qk * cos + qk.roll(self.head_size // 2, -1) * sin
        return qk[..., : self.heads, :], qk[..., self.heads :, :], value

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), None, self.eps) * weight

    def _finish_layer(self, layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection and MLP, each with its residual."""
        x = x + _linear(attended, layer.out.weight, layer.out.bias)
        gate_up = _linear(self._rms(x, layer.norm_mlp), layer.gate_up, layer.gate_up_bias)
        gate, up = gate_up.chunk(2, dim=-1)
        return x + _linear(F.silu(gate) * up, layer.down.weight, layer.down.bias)

    def prefill(self, prompts: Sequence[PromptTokens]) -> tuple[Tensor, list[list[float] | None]]:
        logits: list[Tensor] = []
        scores: list[list[float] | None] = []
        for chunk in _chunks(prompts):
            hidden = self._prefill_chunk(chunk)
            ends = [len(prompt.tokens) - 1 for prompt in chunk]
            logits.append(self.head(hidden[list(range(len(chunk))), ends]))
            scores += [self._score(prompt, hidden[index]) for index, prompt in enumerate(chunk)]
        return torch.cat(logits), scores

    def _prefill_chunk(self, prompts: Sequence[PromptTokens]) -> Tensor:
        """Final hidden states [P, T, H]; padding is at the end, where causality hides it."""
        width = max(len(prompt.tokens) for prompt in prompts)
        ids = [[*prompt.tokens, *([0] * (width - len(prompt.tokens)))] for prompt in prompts]
        rows = [index for index, prompt in enumerate(prompts) for _ in range(prompt.copies)]
        source = torch.tensor(rows, dtype=torch.int64, device=self.device)
        start, stop = self.rows, self.rows + len(source)
        self.longest = max(self.longest, *(prompt.longest for prompt in prompts))
        self._reserve(stop, width)
        self.rows = stop
        cos, sin = self.cos[:width], self.sin[:width]
        x = self.embedding(torch.tensor(ids, device=self.device))
        for index, layer in enumerate(self.layers):
            query, key, value = (part.transpose(1, 2) for part in self._project(layer, x, cos, sin))
            self.cache[index, 0, start:stop, :, :width] = key[source]
            self.cache[index, 1, start:stop, :, :width] = value[source]
            attended = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=self.scale, enable_gqa=self.kv_heads < self.heads
            )
            x = self._finish_layer(layer, x, attended.transpose(1, 2).flatten(2))
        return self._rms(x, self.norm)

    def _score(self, prompt: PromptTokens, prompt_states: Tensor) -> list[float] | None:
        if prompt.score_from is None:
            return None
        following = prompt.tokens[prompt.score_from + 1 :]
        targets = torch.tensor(following, dtype=torch.int64, device=self.device)
        hidden = prompt_states[prompt.score_from : prompt.score_from + len(targets)]
        scores: list[float] = []
        for states, ids in zip(
            torch.split(hidden, SCORE_TOKENS), torch.split(targets, SCORE_TOKENS), strict=True
        ):
            logprobs = torch.log_softmax(self.head(states).float(), dim=-1)
            scores += logprobs.gather(1, ids.unsqueeze(1)).squeeze(1).tolist()
        return scores

    def decode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        positions = int(lengths.max()) + 1  # on the host: no wait for a GPU
        self._reserve(self.rows, positions)
        tokens, lengths = (x.to(self.device, non_blocking=True) for x in (tokens, lengths))
        places = self._places(lengths)
        hidden = torch.arange(positions, device=self.device) > lengths.unsqueeze(1)
        seen = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        mask = seen.masked_fill_(hidden, float("-inf"))[:, None, None]
        cos, sin = self.cos[lengths], self.sin[lengths]
        x = self.embedding(tokens)
        for index, layer in enumerate(self.layers):
            query, key, value = self._project(layer, x, cos, sin)
            cache = self.cache[index]
            new = torch.cat([key, value]).view(-1, self.head_size)
            cache.view(-1, self.head_size).index_copy_(0, places, new)
            keys, values = cache[:, : self.rows, :, :positions]
            attended = self._attend(query, keys, values, mask)
            x = self._finish_layer(layer, x, attended)
        logits: Tensor = self.head(self._rms(x, self.norm))
        return logits

    def _places(self, lengths: Tensor) -> Tensor:
        """Where keys and values of the positions `lengths` [B] lie in a layer's cache as one list of heads:
        [2 * B * kv heads]. By such a list, all of them are one cheap copy."""
        _, _, held_rows, heads, held_positions, _ = self.cache.shape
        kinds, own, head = (torch.arange(count, device=self.device) for count in (2, self.rows, heads))
        lines = (kinds.unsqueeze(1) * held_rows + own).unsqueeze(2) * heads + head
        return (lines * held_positions + lengths.unsqueeze(1)).flatten()

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """One query a row: heads that share a kv head are rows of its matrix. [B, heads * head size]."""
        query = query.view(self.rows, self.kv_heads, -1, self.head_size)
        if not fits_kernel(query):
            attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=self.scale)
            return attended.flatten(1)
        # Of so few queries, the three steps take 0.3 to 1.0 of the time of torch's kernel for a CPU.
        scores = torch.matmul(query * self.scale, keys.transpose(-1, -2)).add_(mask)
        return torch.matmul(torch.softmax(scores, -1), values).flatten(1)

    def keep(self, order: Sequence[int]) -> None:
        moved = [(new, old) for new, old in enumerate(order) if new != old]
        if moved:
            new, old = torch.tensor(moved, device=self.device).unbind(1)
            for layer in self.cache:
                # What is indexed so is a copy: no row is overwritten before it is read.
                layer[:, new] = layer[:, old]
        self.rows = len(order)

    def clear(self) -> None:
        self.rows = 0
        self.longest = 0
        self.used = 0
        self.cache = self._empty_cache(0, 0)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`functional.linear` of x [..., I]."""
    out = times_transposed(x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], len(weight))
    return out if bias is None else out + bias


def _chunks(prompts: Sequence[PromptTokens]) -> Iterator[Sequence[PromptTokens]]:
    """Cut into runs of at most `PREFILL_TOKENS` padded tokens."""
    start, width = 0, 0
    for index, prompt in enumerate(prompts):
        width = max(width, len(prompt.tokens))
        if index > start and width * (index + 1 - start) > PREFILL_TOKENS:
            yield prompts[start:index]
            start, width = index, len(prompt.tokens)
    if start < len(prompts):
        yield prompts[start:]
