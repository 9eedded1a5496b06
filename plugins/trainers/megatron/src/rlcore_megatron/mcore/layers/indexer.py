"""Latent attention that sees the keys that an indexer chose: DeepSeek-V3.2's and GLM-5's.

The choice passes no gradient. An indexer is frozen, or learns the attention's distribution over the chosen
keys (DeepSeek-V3.2, arXiv:2512.02556, equation 4); model and indexer then have no gradient of each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.parallel_state import get_tensor_and_context_parallel_group
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional

from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.layers.attention import causal, recomputable
from rlcore_megatron.mcore.layers.balance import Balanced, attached, balanced_of
from rlcore_megatron.mcore.layers.latent import Latent, LatentAttention, Replicated
from rlcore_megatron.mcore.layers.norms import rms_norm
from rlcore_megatron.mcore.layers.rotary import Rotary, rotate
from rlcore_megatron.mcore.layers.sparse import (
    attend,
    attention_shares,
    choose,
    index_divergence,
    replayed_keys,
)
from rlcore_megatron.mcore.packs.sequences import Sequences
from rlcore_toolkit import current_device

_NORM_EPS = 1e-6
"""The epsilon of the key's norm, whatever the config says of the others."""


@dataclass(frozen=True, kw_only=True)
class IndexSizes:
    """Heads of an indexer, the size of each, and how many keys a query gets."""

    heads: int
    size: int
    top: int


@dataclass(frozen=True, kw_only=True)
class IndexUse:
    """Where a layer's choice comes from: the indexer of layer `source` (from 0), its own if `is_own`.

    `is_shared`: later layers use it too. `number`: that indexer's among all of the model, from 0.
    """

    source: int
    number: int
    is_own: bool = True
    is_shared: bool = False


@dataclass(frozen=True, kw_only=True)
class Index:
    """What the queries `run` of a pack are scored by: `query` [T, H, D], `weight` fp32 [T, H].

    `key` [S, D] are of the whole pack.
    """

    query: Tensor
    key: Tensor
    weight: Tensor
    run: range


class SparseLatentAttention(LatentAttention):
    """Stands where a layer has its self-attention. A sequence-parallel rank indexes a part of the queries."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        *,
        latent: Latent,
        rotary: Rotary,
        index: IndexSizes,
        index_rotary: Rotary,
        use: IndexUse,
        **settings: Any,
    ) -> None:
        super().__init__(config, layer_number, latent=latent, rotary=rotary, **settings)
        assert latent.query_rank is not None, "the indexer reads the compressed query"
        self.top, self.use = index.top, use
        self.indexer = Indexer(config, index, latent.query_rank, index_rotary) if use.is_own else None

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        packed_seq_params: PackedSeqParams,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """hidden_states [T, 1, H], or its part of a sequence-parallel rank → (the same shape, no bias)."""
        compressed = self._compressed(hidden_states)
        query, key, value, pack = self._heads(hidden_states, compressed, packed_seq_params)
        tokens = self._learned(packed_seq_params)
        index = None
        scores_keys = pack.reach > self.top and pack.replayed is None
        if self.indexer is not None and (tokens is not None or scores_keys):
            with torch.set_grad_enabled(tokens is not None):
                index = self.indexer(hidden_states.detach(), self._normed(compressed), pack)
        choice = self._choice(index, pack)

        def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if choice is None or pack.reach <= self.top:
                return causal(query, key, value, pack, self.latent.scale)
            return attend(query, key, value, choice, pack, self.latent.scale)

        out = recomputable(self, attention, query, key, value)
        if self.use.is_shared and out.requires_grad:
            out.register_hook(partial(self._forget, pack))
        if tokens is not None:
            assert self.indexer is not None
            assert index is not None
            assert choice is not None
            shares = self._shares(query, key, choice, pack)
            out = attached(out, self.indexer.loss(index, shares, choice, pack, tokens))
        return self.linear_proj(out.flatten(-2)[:, None])[0], None

    def _normed(self, compressed_query: Tensor) -> Tensor:
        up = self.linear_q_up_proj
        return rms_norm(compressed_query.detach(), up.layer_norm_weight.detach(), up.eps)

    def _learned(self, params: PackedSeqParams) -> Balanced | None:
        """The tokens that the indexer learns of; None where it does not learn, or not in this pass."""
        is_learning = self.indexer is not None and self.config.dsa_indexer_loss_coeff
        return balanced_of(params) if is_learning and torch.is_grad_enabled() else None

    @torch.no_grad()
    def _choice(self, index: Index | None, pack: Sequences) -> Tensor | None:
        """int32 [T, K] of the rank's whole pack; None where every query sees all keys before it."""
        if pack.replayed is not None and (index is not None or pack.reach > self.top):
            bits = pack.replayed[:, self.use.number].to(current_device(), non_blocking=True)
            return replayed_keys(bits, min(self.top, pack.reach))
        if not self.use.is_own:
            assert pack.reach <= self.top or self.use.source in pack.choices, "the stage has its indexer"
            return pack.choices.get(self.use.source)
        if index is None:
            return None
        choice = choose(index.query, index.key, index.weight, pack, self.top, index.run)
        if self.config.sequence_parallel:
            choice = gather_from_sequence_parallel_region(choice)
        if self.use.is_shared:
            if not self.training:
                pack.choices.clear()  # nothing comes back to the layers before
            pack.choices[self.use.source] = choice
        return choice

    def _forget(self, pack: Sequences, gradient: Tensor) -> None:
        """The layers that share the choice have their gradients."""
        pack.choices.pop(self.use.source, None)

    @torch.no_grad()
    def _shares(self, query: Tensor, key: Tensor, choice: Tensor, pack: Sequences) -> Tensor:
        """fp32 [T, K]: what the attention of all heads gives to each chosen key."""
        shares = attention_shares(query, key, choice, pack, self.latent.scale)
        if parallel.tensor_size() > 1:
            dist.all_reduce(shares, group=parallel.tensor_group())
        return shares


class Indexer(MegatronModule):  # type: ignore[misc] # megatron-core is untyped
    """Scores the tokens before each token. Every tensor-parallel rank has all of its weights."""

    def __init__(self, config: TransformerConfig, sizes: IndexSizes, rank: int, rotary: Rotary) -> None:
        super().__init__(config=config)
        self.sizes, self.rotary = sizes, rotary
        self.divergence = 0.0
        self.wq_b = Replicated(rank, sizes.heads * sizes.size, config)
        self.wk = Replicated(config.hidden_size, sizes.size, config)
        self.k_norm = nn.LayerNorm(
            sizes.size, eps=_NORM_EPS, dtype=config.params_dtype, device=current_device()
        )
        self.weights_proj = Replicated(config.hidden_size, sizes.heads, config)
        for parameter in self.k_norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined] # megatron's

    @property
    def is_frozen(self) -> bool:
        """Whether nothing trains it."""
        return not self.config.dsa_indexer_loss_coeff

    def forward(self, hidden: Tensor, compressed_query: Tensor, pack: Sequences) -> Index:
        """hidden [T, 1, H], compressed_query [T, 1, R], of a sequence-parallel rank its part."""
        count = len(hidden)
        start = count * parallel.tensor_rank() if self.config.sequence_parallel else 0
        run = range(start, start + count)
        query = self.wq_b(compressed_query).view(count, self.sizes.heads, self.sizes.size)
        key = self._rotate(self.k_norm(self.wk(hidden)), pack, run)[:, 0]
        if self.config.sequence_parallel:
            key = gather_from_sequence_parallel_region(key)
        weight = functional.linear(hidden[:, 0].float(), self.weights_proj.weight.float())
        return Index(
            query=self._rotate(query, pack, run),
            key=key if pack.share is None else pack.share.gather(key),
            weight=weight * self.sizes.heads**-0.5,
            run=run,
        )

    def _rotate(self, x: Tensor, pack: Sequences, run: range) -> Tensor:
        cosine, sine = (part[run.start : run.stop] for part in self.rotary.table_of(pack, x.dtype))
        return rotate(x, cosine, sine, self.rotary.interleaved)

    def loss(self, index: Index, shares: Tensor, choice: Tensor, pack: Sequences, tokens: Balanced) -> Tensor:
        """This rank's part of coefficient / B · Σ over samples of 1 / T · Σ over tokens of the divergence.

        T counts the tokens of a sample that are trained on, B the samples of the mini-batch.
        """
        own = slice(index.run.start, index.run.stop)
        of_queries = (shares[own], choice[own])
        values = index_divergence(index.query, index.key, index.weight, *of_queries, pack, index.run)
        mine = (values[tokens.places] / tokens.lengths[tokens.samples]).sum() * tokens.scale
        self.divergence += float(mine.detach())
        return mine * float(self.config.dsa_indexer_loss_coeff)


def freeze_indexers(chunk: nn.Module) -> None:
    """Take the parameters of indexers that nothing trains out of gradients and optimizer."""
    for module in chunk.modules():
        if isinstance(module, Indexer) and module.is_frozen:
            module.requires_grad_(False)


def take_divergence(chunks: Sequence[nn.Module], config: TransformerConfig) -> Tensor:
    """The indexers' loss since the last call, coefficient 1, of this stage's layers, as float64."""
    total = torch.zeros((), dtype=torch.float64, device=current_device())
    for module in (module for chunk in chunks for module in chunk.modules()):
        if isinstance(module, Indexer):
            total += module.divergence
            module.divergence = 0.0
    is_cut = config.sequence_parallel
    group = get_tensor_and_context_parallel_group() if is_cut else parallel.context_group()
    if dist.get_world_size(group) > 1:
        dist.all_reduce(total, group=group)
    return total
