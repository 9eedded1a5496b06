"""Qwen3-MoE on megatron-core is what transformers computes."""

from typing import ClassVar

from transformers import Qwen3MoeConfig

from rlcore.api.part import Part
from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import EXPERT_LAYOUTS, HEADS, ROPES, BridgeConformance


class TestQwen3Moe(BridgeConformance):
    """The models with experts."""

    bridge = Part(name="qwen3_moe", factory="rlcore_qwen.moe:QwenMoeBridge")
    config_class = Qwen3MoeConfig
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar = {
        **BridgeConformance.shape,
        "moe_intermediate_size": 24,
        "num_experts": 8,
        "num_experts_per_tok": 3,
    }
    axes: ClassVar = {
        "attention": (
            {**HEADS[0], **ROPES[0]},
            {**HEADS[1], **ROPES[3]},
            {**HEADS[2], **ROPES[1]},
            {**HEADS[0], **ROPES[2]},
        ),
        "routing": ({"norm_topk_prob": True}, {"norm_topk_prob": False}),
        "layers": (
            {"decoder_sparse_step": 1, "tie_word_embeddings": False},
            {"mlp_only_layers": [0], "tie_word_embeddings": True},
            {"decoder_sparse_step": 2, "tie_word_embeddings": True},
        ),
    }
    layouts: ClassVar = EXPERT_LAYOUTS
    layout_models: ClassVar = {
        "dense and sparse": {
            **HEADS[0],
            "norm_topk_prob": True,
            "mlp_only_layers": [0],
            "num_hidden_layers": 4,
        },
        "tied": {"num_hidden_layers": 4, **HEADS[1], "norm_topk_prob": False, "tie_word_embeddings": True},
    }
    refused: ClassVar = {
        "use_sliding_window is not supported": {"use_sliding_window": True},
        "attention_bias is not supported": {"attention_bias": True},
    }
