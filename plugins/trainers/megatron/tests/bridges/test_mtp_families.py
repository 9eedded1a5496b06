"""The layer for multi-token prediction of DeepSeek-V3.2, GLM-4.5, GLM-4.7-Flash and GLM-5."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_ranks import mtp_step
from transformers import (
    DeepseekV32Config,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    GlmMoeDsaConfig,
    PretrainedConfig,
)

from rlcore import Part
from rlcore_testing.checkpoints import make_checkpoint
from rlcore_testing.mtp import mtp_reference, publish_mtp
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import random_batch

LAYERS, FACTOR = 2, 0.3
SHAPE: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": LAYERS + 1,
    "num_attention_heads": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 64,
    "pad_token_id": None,
}
GROUPED: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 12, "use_qk_norm": True}
LATENT: dict[str, Any] = {
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
}
INDEX: dict[str, Any] = {"index_topk": 3, "index_n_heads": 12, "index_head_dim": 12}
MODELS: dict[str, tuple[Part, PretrainedConfig]] = {
    "DeepSeek-V3.2": (
        Part(name="deepseek_v32", factory="rlcore_deepseek.bridge:SparseDeepseekBridge"),
        DeepseekV32Config(**SHAPE, **LATENT, **INDEX, num_key_value_heads=4, tie_word_embeddings=False),
    ),
    "GLM-4.5, tied": (
        Part(name="glm4_moe", factory="rlcore_glm.moe:GlmMoeBridge"),
        Glm4MoeConfig(**SHAPE, **GROUPED, tie_word_embeddings=True),
    ),
    "GLM-4.7-Flash": (
        Part(name="glm4_moe_lite", factory="rlcore_glm.lite:GlmMoeLiteBridge"),
        Glm4MoeLiteConfig(**SHAPE, **LATENT, num_key_value_heads=4, tie_word_embeddings=False),
    ),
    "GLM-5": (
        Part(name="glm5", factory="rlcore_glm.sparse:GlmSparseBridge"),
        GlmMoeDsaConfig(**SHAPE, **LATENT, **INDEX, num_key_value_heads=4, tie_word_embeddings=False),
    ),
}
PP2 = {"pipeline_model_parallel_size": 2}


@pytest.mark.parametrize("model", MODELS)
def test_it_learns_by_the_formula_and_is_published_as_it_was(model: str, tmp_path: Path) -> None:
    """On one rank, and where its embedding is on another stage than itself."""
    bridge, config = MODELS[model]
    plain, published = tmp_path / "plain", tmp_path / "published"
    make_checkpoint(plain, config)
    shutil.copytree(plain, published)
    source = publish_mtp(published)
    loss, gradients = mtp_reference(plain, published, random_batch(9), FACTOR, tmp_path / "gradients")
    layer = f"model.layers.{LAYERS}."
    for ranks, layout in ((1, {}), (2, PP2)):
        found, weights, grown = run_ranks(mtp_step, ranks, bridge, published, FACTOR, layout)[-1]
        assert found == pytest.approx(loss, rel=1e-5)
        copies = {f"{layer}embed_tokens.weight", f"{layer}shared_head.head.weight"}
        assert weights.keys() == source.keys() - copies
        assert all(torch.equal(source[name], tensor) for name, tensor in weights.items())
        for name, gradient in gradients.items():
            if name.endswith("e_score_correction_bias") or ".indexer." in name:  # a buffer, or frozen
                continue
            assert gradient.abs().max() > 1e-4, name
            bound = 1e-5 * (1 + float(gradient.abs().max()))
            assert float((grown[name] - gradient).abs().max()) < bound, (ranks, name)
