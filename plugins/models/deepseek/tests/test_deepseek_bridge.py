"""DeepSeek-V3 and V3.2 on megatron-core are what transformers computes."""

from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import save_file
from transformers import DeepseekV3Config, DeepseekV32Config

from rlcore.api.part import Part
from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import EXPERT_LAYOUTS, RANKS, ROPES, BridgeConformance
from rlcore_testing.checkpoints import make_checkpoint, tensors_of
from rlcore_testing.ranks import run_ranks

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
SIZES = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "num_mtp_layers": 0,
}
WHOLE = {"q_lora_rank": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
YARNED = {"q_lora_rank": 20, "rope_parameters": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.9}}
ROUTED = {"n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
PLAIN = {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0}


class TestDeepseekV3(BridgeConformance):
    """Latent attention and experts."""

    bridge = Part(name="deepseek_v3", factory="rlcore_deepseek.bridge:DeepseekBridge")
    config_class = DeepseekV3Config
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar = {**BridgeConformance.shape, **SIZES}
    axes: ClassVar = {
        "attention": (
            YARNED,
            WHOLE,
            {"q_lora_rank": 20, "rope_parameters": YARN, "rope_interleave": False},
            {"q_lora_rank": None, **ROPES[1]},
            {"q_lora_rank": 20, **ROPES[2], "rope_interleave": False},
        ),
        "routing": (
            ROUTED,
            PLAIN,
        ),
        "layers": (
            {"first_k_dense_replace": 1, "n_shared_experts": 1, "tie_word_embeddings": False},
            {"first_k_dense_replace": 0, "n_shared_experts": 2, "tie_word_embeddings": True},
        ),
    }
    layouts: ClassVar = EXPERT_LAYOUTS
    layout_models: ClassVar = {
        "first dense": {**YARNED, **ROUTED, "first_k_dense_replace": 1, "num_hidden_layers": 4},
    }
    refused: ClassVar = {
        "rope_type 'dynamic' is not supported": {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        },
        "attention_bias is not supported": {"attention_bias": True},
        "num_key_value_heads 2 is not supported": {"num_key_value_heads": 2},
        "quantized by 'gptq'": {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    }


INDEX = {"index_topk": 3, "index_n_heads": 12, "index_head_dim": 12, "q_lora_rank": 20}


class TestDeepseekV32(BridgeConformance):
    """Latent attention over the keys that an indexer chooses."""

    bridge = Part(name="deepseek_v32", factory="rlcore_deepseek.bridge:SparseDeepseekBridge")
    config_class = DeepseekV32Config
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar = {**TestDeepseekV3.shape, **INDEX, "num_experts_per_tok": 5}
    axes: ClassVar = {
        "attention": (
            {"rope_parameters": YARNED["rope_parameters"]},
            {**ROPES[0], "index_topk": 20},
            {**ROPES[1], "index_n_heads": 10, "index_head_dim": 8},
        ),
        "routing": (PLAIN, {**ROUTED, "num_experts_per_tok": 4}),
        "layers": TestDeepseekV3.axes["layers"],
    }
    layouts: ClassVar = EXPERT_LAYOUTS
    layout_models: ClassVar = {
        "first dense": {**YARNED, **PLAIN, "first_k_dense_replace": 1, "num_hidden_layers": 4},
    }
    refused: ClassVar = {
        **TestDeepseekV3.refused,
        "index_topk 0 is not supported": {"index_topk": 0},
        "index_kpool 16 is not supported": {"index_kpool": 16},
        "layers that share an indexer are not supported": {"indexer_types": ["full", "shared"]},
        "layer_types has 'full_attention'": {"layer_types": ["full_attention"] * 2},
    }


def test_below_the_number_of_chosen_keys_it_is_deepseek_v3(tmp_path: Path) -> None:
    sparse = TestDeepseekV32.config(**ROPES[0], **PLAIN, index_topk=20)
    reference = make_checkpoint(tmp_path / "v32" / "model", sparse)
    tensors = tensors_of(tmp_path / "v32" / "model")
    dense = TestDeepseekV3.config(**ROPES[0], **PLAIN, q_lora_rank=20, num_experts_per_tok=5)
    (tmp_path / "v3" / "model").mkdir(parents=True)
    dense.save_pretrained(tmp_path / "v3" / "model")
    kept = {name: tensor for name, tensor in tensors.items() if ".indexer." not in name}
    save_file(kept, tmp_path / "v3" / "model" / "model.safetensors", metadata={"format": "pt"})
    for extra in (tmp_path / "v32").glob("*.gradients"):
        extra.rename(tmp_path / extra.name)
    inputs = {"model": (reference.ids, reference.mask)}
    found = [
        run_ranks(f"{RANKS}:packed_logits", 1, suite.bridge, tmp_path / name, inputs, "fp32")[0]["model"]
        for name, suite in (("v32", TestDeepseekV32), ("v3", TestDeepseekV3))
    ]
    assert torch.equal(*found)
