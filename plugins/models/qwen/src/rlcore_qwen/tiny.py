"""A tiny random Qwen3 with a tokenizer of single characters: what `--model qwen3` trains on a laptop."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789+=,: acdeoprstvy"
"""Digits, signs, and the letters of the words add, copy, reverse and sort."""
VOCABULARY = (PAD, EOS, UNKNOWN, *CHARACTERS)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": len(VOCABULARY),
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "initializer_range": 0.1,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "use_cache": True,
    "pad_token_id": VOCABULARY.index(PAD),
    "eos_token_id": VOCABULARY.index(EOS),
    "bos_token_id": None,
    "dtype": "float32",
}
"""Untied embeddings and a wide initialization: with either changed, it learns several times slower."""


def tiny(directory: str | Path, seed: int = 0) -> Path:
    """Write the model's Hugging Face directory; returns it. The same seed gives the same bytes."""
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    save_file(dict(_weights(seed)), path / "model.safetensors", metadata={"format": "pt"})
    _write_json(path / "config.json", CONFIG)
    tokens = {"pad_token_id": CONFIG["pad_token_id"], "eos_token_id": CONFIG["eos_token_id"]}
    _write_json(path / "generation_config.json", {"do_sample": True, **tokens})
    _write_tokenizer(path)
    return path


def _weights(seed: int) -> Iterator[tuple[str, Tensor]]:
    """Norms of ones, matrices of normal numbers of the configured width, in a fixed order."""
    generator = torch.Generator().manual_seed(seed)
    for name, shape in _shapes():
        if len(shape) == 1:
            yield name, torch.ones(shape)
        else:
            yield name, torch.randn(shape, generator=generator) * CONFIG["initializer_range"]


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, head = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    queries, keys = CONFIG["num_attention_heads"] * head, CONFIG["num_key_value_heads"] * head
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    yield "model.embed_tokens.weight", (CONFIG["vocab_size"], hidden)
    for number in range(CONFIG["num_hidden_layers"]):
        for name, shape in layer.items():
            yield f"model.layers.{number}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (CONFIG["vocab_size"], hidden)


def _write_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(
        WordLevel({token: number for number, token in enumerate(VOCABULARY)}, unk_token=UNKNOWN)
    )
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([PAD, EOS, UNKNOWN])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": EOS,
        "unk_token": UNKNOWN,
        "model_max_length": CONFIG["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(path / "tokenizer_config.json", settings)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
