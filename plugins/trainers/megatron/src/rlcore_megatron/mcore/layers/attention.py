"""Causal self-attention over packed sequences: no padding, no mask, grouped queries.

Rotary positions are applied here and not by megatron's SelfAttention, which cuts the pack into sequences once
for the queries and once for the keys of every layer: here the table is made once a forward.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.random import checkpoint
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.layers.rotary import Rotary, rotate
from rlcore_megatron.mcore.layers.sinks import CpuFlash, Plain, Varlen, with_sinks
from rlcore_megatron.mcore.packs.sequences import Pieces, Sequences
from rlcore_toolkit import current_device, varlen_attention


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """How scores become weights, as `causal` says."""

    scale: float
    window: int | None
    sinks: Tensor | None


def causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack: Sequences,
    scale: float,
    *,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """q [T, heads, D], k [T, groups, D], v [T, groups, V] → [T, heads, V].

    out_i = Σ_j softmax_j(scale · q_i · k_j) v_j over the tokens j of i's sequence up to i itself: all, or the
    last `window`. `sinks` [heads]: logits that take part in the softmax and have no value.
    """
    rule = _Rule(scale=scale, window=window, sinks=sinks)
    width = v.shape[-1]
    if width < q.shape[-1]:  # kernels that keep no matrix of scores take one size for all three
        v = functional.pad(v, (0, q.shape[-1] - width))
    varlen = q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)
    return (_varlen if varlen else _by_length)(q, k, v, pack, rule)[..., :width]


def _varlen(q: Tensor, k: Tensor, v: Tensor, pack: Sequences, rule: _Rule) -> Tensor:
    ends_q = ends_k = pack.starts
    if pack.share is not None:
        ends_q, ends_k, index = pack.seen
        k, v = (pack.share.gather(x).index_select(0, index) for x in (k, v))
    before = -1 if rule.window is None else rule.window - 1
    if rule.sinks is not None:
        ends = {"ends_q": ends_q, "ends_k": ends_k}
        kernel = Varlen(scale=rule.scale, longest=pack.longest, before=before, **ends)
        return with_sinks(kernel, rule.sinks, q, k, v)
    return varlen_attention(q, k, v, ends_q, ends_k, pack.longest, scale=rule.scale, before=before)


def _by_length(q: Tensor, k: Tensor, v: Tensor, pack: Sequences, rule: _Rule) -> Tensor:
    """One dense call for all pieces of a shape: neither padding nor a call a sequence."""
    if rule.window is not None:
        pack = pack.within(rule.window)
    order = pack.order  # pieces of one shape behind each other: then a view of them is a batch
    whole_k, whole_v = k, v
    if pack.share is not None:
        whole_k, whole_v = pack.share.gather(k), pack.share.gather(v)
        # taken from the whole, so that every rank is part of the collective of its gradient
        places = pack.share.places.to(k.device)
        k, v = whole_k.index_select(0, places), whole_v.index_select(0, places)
    own_q, own_k, own_v = (q, k, v) if order is None else (x.index_select(0, order) for x in (q, k, v))
    out, start = [], 0
    for part in pack.parts:
        end = start + part.count * part.length
        keys, values = _seen(whole_k, own_k[start:end], part), _seen(whole_v, own_v[start:end], part)
        out.append(_dense(own_q[start:end], keys, values, part, rule))
        start = end
    whole = out[0] if len(out) == 1 else torch.cat(out)
    return whole if order is None else whole.index_select(0, pack.inverse)


def _seen(whole: Tensor, own: Tensor, part: Pieces) -> Tensor:
    """[count, groups, before + length, D]: keys or values of what a piece sees."""
    mine = own.view(part.count, part.length, *own.shape[1:])
    if part.index is None:
        return mine.transpose(1, 2)
    shared = whole.index_select(0, part.index).view(part.count, part.before, *own.shape[1:])
    return torch.cat((shared, mine), dim=1).transpose(1, 2)


def _dense(q: Tensor, k: Tensor, v: Tensor, part: Pieces, rule: _Rule) -> Tensor:
    """q [count * length, heads, D] → the same."""
    mask = None
    if part.before:
        # `is_causal` lets query i see keys 0 to i; here the keys before the piece are in front of its own
        size = (part.length, part.before + part.length)
        mask = torch.ones(size, dtype=torch.bool, device=q.device).tril(part.before)
        if rule.window is not None:
            mask = mask.triu(part.before - rule.window + 1)
    q = q.view(part.count, part.length, *q.shape[1:]).transpose(1, 2)
    if rule.sinks is not None:
        hidden = None if mask is None else q.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
        kernel = CpuFlash if q.device.type == "cpu" else Plain
        out = with_sinks(kernel(scale=rule.scale, mask=hidden), rule.sinks, q, k, v)
    else:
        settings: dict[str, Any] = {"attn_mask": mask, "is_causal": mask is None, "scale": rule.scale}
        grouped = q.shape[1] != k.shape[1]
        out = functional.scaled_dot_product_attention(q, k, v, enable_gqa=grouped, **settings)
    return out.transpose(1, 2).flatten(0, 1)


def recomputable(module: MegatronModule, attend: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`attend(*inputs)`, the core of `module`; computed again in the backward pass where `core_attn` is.

    Megatron's own attention does this itself. Layers that replace it call this.
    """
    config = module.config
    selective = config.recompute_granularity == "selective"
    if module.training and selective and "core_attn" in config.recompute_modules:
        return cast(Tensor, checkpoint(attend, False, *inputs))
    return attend(*inputs)


class CoreAttention(MegatronModule):  # type: ignore[misc] # megatron-core is untyped
    """What SelfAttention calls between its linear layers. `window`, `sinks`: as `causal` says."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        *,
        rotary: Rotary,
        window: int | None = None,
        sinks: bool = False,
        softmax_scale: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        assert config.attention_dropout == 0.0
        self.rotary = rotary
        self.scale = 1.0 / math.sqrt(config.kv_channels) if softmax_scale is None else softmax_scale
        self.window = window
        self.sinks: torch.nn.Parameter | None = None
        if sinks:
            heads = config.num_attention_heads // parallel.tensor_size()
            self.sinks = torch.nn.Parameter(
                torch.zeros(heads, dtype=config.params_dtype, device=current_device())
            )
            set_tensor_model_parallel_attributes(self.sinks, is_parallel=True, dim=0, stride=1)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """query [T, heads, D], key and value [T, groups, D] → [T, heads * D]."""
        assert packed_seq_params is not None
        assert attention_mask is None
        assert attention_bias is None
        pack = Sequences.of(packed_seq_params, query.shape[0])
        table = self.rotary.table_of(pack, query.dtype)
        query, key = (rotate(x, *table, self.rotary.interleaved) for x in (query, key))
        scales = self.rotary.query_scales(pack.positions, query.dtype)
        query = query if scales is None else query * scales
        out = causal(query, key, value, pack, self.scale, window=self.window, sinks=self.sinks)
        return out.flatten(-2)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Sequence[Any] = (), metadata: Any = None
    ) -> Any:
        """What a checkpoint of megatron asks for: where this rank's sinks are among those of all heads."""
        state = self.state_dict(prefix="", keep_vars=True)
        return make_sharded_tensors_for_checkpoint(state, prefix, {"sinks": 0}, sharded_offsets)
