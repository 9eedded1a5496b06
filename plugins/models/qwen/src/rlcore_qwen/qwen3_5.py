"""Qwen3.5 on megatron-core: gated delta nets, every few layers a gated attention; dense or with experts."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rlcore_megatron.mcore.bridges.names import LAYER
from rlcore_megatron.mcore.layers.routing import Routing
from rlcore_qwen.delta import DeltaBridge, DeltaExpertNames, DeltaMoeBridge, DeltaNames

_PROJECTIONS: Mapping[str, Sequence[str]] = {
    "self_attention.in_proj_qkvz.weight": [
        f"{LAYER}.linear_attn.in_proj_qkv.weight",
        f"{LAYER}.linear_attn.in_proj_z.weight",
    ],
    "self_attention.in_proj_ba.weight": [
        f"{LAYER}.linear_attn.in_proj_b.weight",
        f"{LAYER}.linear_attn.in_proj_a.weight",
    ],
}


class DenseNames(DeltaNames):
    """Four projections of a delta net's input."""

    _ATTENTION_MAPPING: ClassVar = {**DeltaNames._ATTENTION_MAPPING, **_PROJECTIONS}


class SparseNames(DeltaExpertNames):
    """The same with experts, in every layer: the config has no size of a dense MLP."""

    _CONFIG_MAPPING: ClassVar = {
        **DeltaExpertNames._CONFIG_MAPPING,
        "ffn_hidden_size": "moe_intermediate_size",
    }
    _ATTENTION_MAPPING: ClassVar = {**DeltaExpertNames._ATTENTION_MAPPING, **_PROJECTIONS}


class DenseBridge(DeltaBridge):
    """`Qwen3_5ForCausalLM`."""

    names = DenseNames

    def fields(self) -> Mapping[str, Any]:
        # layers are saved by their numbers, since they are not alike
        return {**super().fields(), "hetereogenous_dist_checkpoint": True}


class SparseBridge(DeltaMoeBridge):
    """`Qwen3_5MoeForCausalLM`."""

    names = SparseNames

    def routing(self) -> Routing:
        return Routing(top_k=self.hf_config.num_experts_per_tok, score="softmax", normalize=True)

    def sparse_layers(self) -> Sequence[bool]:
        return [True] * int(self.hf_config.num_hidden_layers)
