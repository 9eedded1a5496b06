"""Tiny random models of several families, and the parts of the server in one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GenerationConfig,
    GlmMoeDsaConfig,
    GPT2Config,
    KimiLinearConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from rlcore_local.testing import END

VOCAB = 96
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "eos_token_id": END,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "qwen2": lambda: Qwen2Config(**COMMON, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**COMMON, head_dim=16, tie_word_embeddings=False),
    "llama": lambda: LlamaConfig(
        **COMMON, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=False
    ),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **COMMON, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2
    ),
    "qwen3_next": lambda: Qwen3NextConfig(
        **COMMON,
        head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        rms_norm_eps=1e-2,  # as in the suite of its bridge
    ),
    "glm_moe_dsa": lambda: GlmMoeDsaConfig(
        **{**COMMON, "num_key_value_heads": 4, "pad_token_id": None},  # whose zeros have equal scores
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
        first_k_dense_replace=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        index_topk=4,
        index_n_heads=16,
        index_head_dim=16,
        indexer_types=["full", "shared"],
    ),
    "kimi_linear": lambda: KimiLinearConfig(
        **{**COMMON, "num_key_value_heads": 4},
        layer_types=["linear_attention", "full_attention"],
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
        linear_num_heads=4,
        linear_head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        rms_norm_eps=1e-2,  # as above
    ),
    "gemma2": lambda: Gemma2Config(**COMMON, head_dim=8, sliding_window=8, query_pre_attn_scalar=8),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=256, eos_token_id=END, bos_token_id=1
    ),
}


def build(family: str, seed: int, path: Path) -> Path:
    """Save a random model; its biases and norms are random too, so that none can be forgotten."""
    torch.manual_seed(seed)
    config = FAMILIES[family]()
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if name.endswith(("bias", "norm.weight", "layernorm.weight")):
                one.add_(torch.randn_like(one) * 0.2)
    model.generation_config = GenerationConfig(eos_token_id=END, pad_token_id=0)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`model_path(family, seed=0)`: a directory, made once."""
    root = tmp_path_factory.mktemp("models")

    def make(family: str, seed: int = 0) -> Path:
        path = root / f"{family}-{seed}"
        return path if path.exists() else build(family, seed, path)

    return make


@pytest.fixture(scope="session")
def letters_path(model_path: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 with a tokenizer whose token i is one letter (i below 3: special)."""
    path = build("qwen3", 0, tmp_path_factory.mktemp("letters"))
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2} | {chr(0x4E00 + i): i for i in range(3, VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>")
    fast.save_pretrained(path)
    return path
