"""A tiny reward model with a tokenizer of its own, and what transformers says by it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

SPECIAL = ("<pad>", "<user>", "<assistant>", "<end>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CONTEXT = 128


def make_reward_model(path: Path, family: str = "qwen2", **changes: Any) -> Path:
    """A random sequence classifier of 2 layers, whose tokens are bytes, at `path`.

    `family`: model_type of its decoder; `changes`: fields of its config.
    """
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(path)
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.1,
        "num_labels": 1,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        **changes,
    }
    torch.manual_seed(0)
    models: Any = AutoModelForSequenceClassification  # transformers leaves much of it untyped
    config = AutoConfig.for_model(family, **settings)
    models.from_config(config, dtype=torch.float32).save_pretrained(path)
    return path


def reference_scores(path: Path, texts: Sequence[Sequence[int]]) -> list[list[float]]:
    """What transformers' own forward says of each text alone, in fp32."""
    import torch
    from transformers import AutoModelForSequenceClassification

    models: Any = AutoModelForSequenceClassification
    model = models.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        return [model(torch.tensor([list(text)])).logits[0].tolist() for text in texts]


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL[3],
        pad_token=SPECIAL[0],
        additional_special_tokens=list(SPECIAL[1:3]),
        chat_template=CHAT_TEMPLATE,
    )
