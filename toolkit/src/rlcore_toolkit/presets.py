"""Tiny random models with a tokenizer of single characters, which `--model FAMILY` trains on a laptop.

A family's preset is a config and a call of `write_tiny_model`. Importing this module does not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789+=,: acdeoprstvy"
"""Digits, signs, and the letters of the words add, copy, reverse and sort."""
VOCABULARY = (PAD, EOS, UNKNOWN, *CHARACTERS)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)

TINY_SUGGESTS: Mapping[str, Any] = MappingProxyType(
    {
        "steps": 100,
        "prompts_per_step": 32,
        "group_size": 16,
        "max_prompt_tokens": 32,
        "max_response_tokens": 8,
        "lr": 2e-3,
        "critic.lr": 2e-3,
        "entropy_coef": 0.2,
        "eval_every": 20,
    }
)
"""Settings with which a two-layer model learns a task of a few characters from random weights in 100
steps.
"""

TINY_SIZES: Mapping[str, Any] = MappingProxyType(
    {
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
        "tie_word_embeddings": False,
        "use_cache": True,
        "pad_token_id": VOCABULARY.index(PAD),
        "eos_token_id": VOCABULARY.index(EOS),
        "bos_token_id": None,
        "dtype": "float32",
    }
)
"""Fields of a config.json.

With tied embeddings or a narrower initialization, a model learns several times slower.
"""

TINY_LATENT: Mapping[str, Any] = MappingProxyType(
    {
        **TINY_SIZES,
        "num_key_value_heads": TINY_SIZES["num_attention_heads"],
        "q_lora_rank": None,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 48,
        "routed_scaling_factor": 1.0,
    }
)
"""The same with latent attention and experts."""

TINY_DEEPSEEK: Mapping[str, Any] = MappingProxyType(
    {
        **TINY_LATENT,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
        # SGLang reads these, which transformers does not
        "moe_layer_freq": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
    }
)
"""The same with the router of DeepSeek-V3."""

TINY_SPARSE: Mapping[str, Any] = MappingProxyType(
    {
        **TINY_DEEPSEEK,
        "q_lora_rank": 48,
        # so few that prompts and responses of the demo's tasks have more
        "index_topk": 8,
        "index_n_heads": 16,
        "index_head_dim": 16,
    }
)
"""The same with sparse attention."""


Shapes = Iterable[tuple[str, tuple[int, ...]]]
"""The name and shape of each tensor, in the order in which random numbers are drawn for them."""


CONSTANTS: Mapping[str, float] = MappingProxyType({"bias": 0.0, "": 1.0})
"""Biases of zeros, norms of ones."""


def write_tiny_model(
    directory: str | Path,
    config: Mapping[str, Any],
    seed: int = 0,
    shapes: Shapes | None = None,
    constants: Mapping[str, float] = CONSTANTS,
    widths: Mapping[str, float] = MappingProxyType({}),
) -> Path:
    """Write and return the Hugging Face directory of a random model of `config`, which includes `TINY_SIZES`.

    The same seed gives the same bytes. `shapes`: those that transformers derives from the config. A family
    that gives them saves the import of the model's class at the start of a run. `constants`: the values of
    vectors, by the end of their name; the first that fits counts. `widths`: the standard deviations of
    matrices, likewise; else `initializer_range` of the config.
    """
    from safetensors.torch import save_file

    from rlcore import expected_shapes

    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    _write_json(path / "config.json", dict(config))
    named = expected_shapes(path).items() if shapes is None else shapes
    weights = dict(_weights(named, {**widths, "": config["initializer_range"]}, seed, constants))
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    tokens = {"pad_token_id": config["pad_token_id"], "eos_token_id": config["eos_token_id"]}
    _write_json(path / "generation_config.json", {"do_sample": True, **tokens})
    _write_tokenizer(path, config)
    return path


def _weights(
    shapes: Shapes, widths: Mapping[str, float], seed: int, constants: Mapping[str, float]
) -> Iterator[tuple[str, Tensor]]:
    """Vectors of `constants`, matrices of normal numbers with the standard deviations `widths`."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, shape in shapes:
        is_matrix = len(shape) > 1
        values = widths if is_matrix else constants
        value = next(values[end] for end in values if name.endswith(end))
        drawn = torch.randn(shape, generator=generator) if is_matrix else torch.ones(shape)
        yield name, drawn * value


def _write_tokenizer(path: Path, config: Mapping[str, Any]) -> None:
    from tokenizers import Regex, Tokenizer, decoders
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    numbers = {token: number for number, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(numbers, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([PAD, EOS, UNKNOWN])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": EOS,
        "unk_token": UNKNOWN,
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(path / "tokenizer_config.json", settings)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
