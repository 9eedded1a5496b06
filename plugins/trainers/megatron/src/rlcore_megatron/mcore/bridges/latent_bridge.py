"""`LatentBridge`: a base for families with latent attention and experts, as DeepSeek-V3 has them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from transformers import PretrainedConfig

from rlcore import ModelError
from rlcore_megatron.mcore.bridges.moe_bridge import ExpertNames, SharedExpertsBridge
from rlcore_megatron.mcore.bridges.names import LAYER
from rlcore_megatron.mcore.layers.backend import Mixer, latent_attention, sparse_latent_attention
from rlcore_megatron.mcore.layers.indexer import IndexSizes, IndexUse
from rlcore_megatron.mcore.layers.latent import Latent
from rlcore_megatron.mcore.layers.rotary import Rotary
from rlcore_toolkit import current_device

_NORM_EPS = 1e-6
"""The epsilon of the compressed vectors' norms, whatever `rms_norm_eps` says of the others."""


class LatentNames(ExpertNames):
    """The names of the attention's weights."""

    _ATTENTION_MAPPING: ClassVar = {
        f"self_attention.{ours}.weight": [f"{LAYER}.self_attn.{theirs}.weight"]
        for ours, theirs in (
            ("linear_q_proj", "q_proj"),
            ("linear_q_down_proj", "q_a_proj"),
            ("linear_q_up_proj", "q_b_proj"),
            ("linear_kv_down_proj", "kv_a_proj_with_mqa"),
            ("linear_kv_up_proj", "kv_b_proj"),
            ("linear_proj", "o_proj"),
        )
    } | {
        f"self_attention.linear_{ours}_up_proj.layer_norm_weight": [
            f"{LAYER}.self_attn.{ours}_a_layernorm.weight"
        ]
        for ours in ("q", "kv")
    }
    _OTHER_MAPPING: ClassVar = {"input_layernorm.weight": [f"{LAYER}.input_layernorm.weight"]}


class LatentBridge(SharedExpertsBridge):
    """Latent attention, and experts chosen within the best groups."""

    names = LatentNames
    rotates: ClassVar[bool] = True
    """Whether a part of each query and key has rotary positions."""

    def check(self, hf_config: PretrainedConfig) -> None:
        super().check(hf_config)
        if hf_config.attention_bias:
            raise ModelError(f"{self.path}: attention_bias is not supported with latent attention.")
        if hf_config.num_key_value_heads != hf_config.num_attention_heads:
            raise ModelError(
                f"{self.path}: num_key_value_heads {hf_config.num_key_value_heads} is not supported: latent "
                f"attention expands keys and values to all {hf_config.num_attention_heads} heads."
            )

    def ropes(self, hf_config: PretrainedConfig) -> Sequence[Mapping[str, Any]]:
        return super().ropes(hf_config) if self.rotates else ()

    def rotary(self) -> Rotary:
        return Rotary.of(self.hf_config, current_device(), interleaved=bool(self.hf_config.rope_interleave))

    def mixer(self, layer: int) -> Mixer:
        return latent_attention(self.shared_rotary if self.rotates else None, self.latent())

    def latent(self) -> Latent:
        """Sizes of the compressed vectors and of a head."""
        config = self.hf_config
        return Latent(
            query_rank=config.q_lora_rank,
            rank=config.kv_lora_rank,
            plain=config.qk_nope_head_dim,
            turned=config.qk_rope_head_dim,
            value=config.v_head_dim,
            scale=_product_scale(config),
            norm_eps=_NORM_EPS,
        )


class SparseNames(LatentNames):
    """The names of an indexer's weights as well."""

    _ATTENTION_MAPPING: ClassVar = LatentNames._ATTENTION_MAPPING | {
        f"self_attention.indexer.{name}": [f"{LAYER}.self_attn.indexer.{name}"]
        for name in ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight")
    }


class SparseBridge(LatentBridge):
    """Latent attention over the keys that indexers choose, as DeepSeek-V3.2 and GLM-5 have it."""

    names = SparseNames
    kinds = ("indexed_attention",)
    index_interleaved: ClassVar[bool]
    """Whether an indexer turns neighbours together, else the halves of what it turns."""

    def check(self, hf_config: PretrainedConfig) -> None:
        super().check(hf_config)
        if (top := hf_config.index_topk) < 1:
            raise ModelError(f"{self.path}: index_topk {top} is not supported; 1 is the least.")
        if (pool := getattr(hf_config, "index_kpool", None) or 1) > 1:
            raise ModelError(f"{self.path}: index_kpool {pool} is not supported; 1 is.")

    def rotary(self) -> Rotary:
        return Rotary.of(self.hf_config, current_device(), interleaved=True)

    @cached_property
    def index_rotary(self) -> Rotary:
        """`shared_rotary` as the indexers of all layers turn."""
        return replace(self.shared_rotary, interleaved=self.index_interleaved)

    def mixer(self, layer: int) -> Mixer:
        config = self.hf_config
        sizes = IndexSizes(heads=config.index_n_heads, size=config.index_head_dim, top=config.index_topk)
        return sparse_latent_attention(
            self.shared_rotary, self.latent(), sizes, self.index_rotary, self.index_use(layer)
        )

    def index_use(self, layer: int) -> IndexUse:
        """Whose indexer a layer uses."""
        return IndexUse(source=layer, number=layer)


def _product_scale(config: PretrainedConfig) -> float:
    """What multiplies the products of queries and keys: yarn's `mscale_all_dim` is in it, twice."""
    scale = float((config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5)
    rope = getattr(config, "rope_parameters", None)
    if not rope or rope["rope_type"] == "default" or rope.get("factor", 1.0) <= 1.0:
        return scale
    grown = 0.1 * float(rope.get("mscale_all_dim", 0.0)) * math.log(rope["factor"]) + 1.0
    return scale * grown * grown
