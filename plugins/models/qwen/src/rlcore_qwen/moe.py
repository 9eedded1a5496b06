"""Qwen3-MoE on megatron-core, and the experts that Qwen3-Next shares with it."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PretrainedConfig

from rlcore import ModelError
from rlcore_megatron.mcore.bridges.moe_bridge import MoeBridge
from rlcore_megatron.mcore.layers.routing import Routing


class QwenExperts(MoeBridge):
    """Which layers have experts, and how tokens choose them."""

    def routing(self) -> Routing:
        return Routing(
            top_k=self.hf_config.num_experts_per_tok,
            score="softmax",
            normalize=self.hf_config.norm_topk_prob,
        )

    def experts(self) -> int:
        return int(self.hf_config.num_experts)

    def sparse_layers(self) -> Sequence[bool]:
        config = self.hf_config
        return [
            number not in config.mlp_only_layers and (number + 1) % config.decoder_sparse_step == 0
            for number in range(config.num_hidden_layers)
        ]


class QwenMoeBridge(QwenExperts):
    """`Qwen3MoeForCausalLM`."""

    def check(self, hf_config: PretrainedConfig) -> None:
        super().check(hf_config)
        if hf_config.attention_bias:
            raise ModelError(f"{self.path}: attention_bias is not supported for Qwen3-MoE.")

    def fields(self) -> Mapping[str, Any]:
        return {**super().fields(), "qk_layernorm": True}
