"""GLM-4.5 on megatron-core is what transformers computes."""

from typing import ClassVar

from transformers import Glm4MoeConfig

from rlcore.api.part import Part
from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import EXPERT_LAYOUTS, HEADS, ROPES, BridgeConformance

ROUTED = {"n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
HALF = {"rope_parameters": {**ROPES[0]["rope_parameters"], "partial_rotary_factor": 0.5}}
PLAIN = {"attention_bias": True, "use_qk_norm": True}


class TestGlm4Moe(BridgeConformance):
    """The models with experts."""

    bridge = Part(name="glm4_moe", factory="rlcore_glm.moe:GlmMoeBridge")
    config_class = Glm4MoeConfig
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar = {
        **BridgeConformance.shape,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "num_mtp_layers": 0,
    }
    axes: ClassVar = {
        "attention": (
            {**HEADS[0], **HALF, **PLAIN},
            {**HEADS[1], **ROPES[0], "attention_bias": False, "use_qk_norm": False},
            {**HEADS[2], **ROPES[3], "attention_bias": True, "use_qk_norm": False},
            {**HEADS[0], **ROPES[1], "attention_bias": False, "use_qk_norm": True},
            {**HEADS[1], **ROPES[2], **PLAIN},
        ),
        "routing": (
            ROUTED,
            {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0},
        ),
        "layers": (
            {"first_k_dense_replace": 1, "n_shared_experts": 1, "tie_word_embeddings": False},
            {"first_k_dense_replace": 0, "n_shared_experts": 2, "tie_word_embeddings": True},
        ),
    }
    layouts: ClassVar = EXPERT_LAYOUTS
    layout_models: ClassVar = {
        "first dense": {
            **HEADS[0],
            **HALF,
            **PLAIN,
            **ROUTED,
            "first_k_dense_replace": 1,
            "num_hidden_layers": 4,
        },
    }
    refused: ClassVar = {"hidden_act 'gelu' is not supported": {"hidden_act": "gelu"}}
