"""GLM-5 on megatron-core is what transformers computes."""

from typing import ClassVar

from transformers import GlmMoeDsaConfig

from rlcore.api.part import Part
from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import EXPERT_LAYOUTS, PP2, ROPES, BridgeConformance

SIZES = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 5,
    "index_topk": 3,
    "index_n_heads": 12,
    "index_head_dim": 12,
    "n_group": 1,
    "topk_group": 1,
}
SHARED = ["full", "shared"] * 4


class TestGlm5(BridgeConformance):
    """Sparse latent attention, with an indexer in each layer or in some, and experts."""

    bridge = Part(name="glm5", factory="rlcore_glm.sparse:GlmSparseBridge")
    config_class = GlmMoeDsaConfig
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar = {**BridgeConformance.shape, **SIZES}
    axes: ClassVar = {
        # the model with most tensors must choose: else no logits tell them apart
        "indexers": (
            {"indexer_types": ["full", "shared"]},
            {"indexer_types": ["full", "shared"], "index_topk": 20},
            {"indexer_types": ["full", "full"]},
        ),
        "attention": ROPES[:2],
        "layers": (
            {"first_k_dense_replace": 1, "n_shared_experts": 1, "tie_word_embeddings": False},
            {"first_k_dense_replace": 0, "n_shared_experts": 2, "tie_word_embeddings": True},
        ),
    }
    # each chunk of a stage starts on a layer with an indexer
    layouts: ClassVar = {
        **EXPERT_LAYOUTS,
        "PP2 uneven": (2, PP2 | {"num_layers_in_last_pipeline_stage": "2"}),
    }
    layout_models: ClassVar = {
        "shared": {**ROPES[0], "num_hidden_layers": 8, "first_k_dense_replace": 1, "indexer_types": SHARED},
    }
    refused: ClassVar = {
        "attention_bias is not supported": {"attention_bias": True},
        "indexer_types 'pooled' is not supported": {"indexer_types": ["full", "pooled"]},
        "indexer_types has 3 entries": {"indexer_types": ["full", "full", "shared"]},
        "layer_types has 'full_attention'": {"layer_types": ["full_attention"] * 2},
    }
