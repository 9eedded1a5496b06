"""What a user brings along: a Hugging Face directory with a tokenizer of its own, and prompt files."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

CONTEXT = 256
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END = SPECIAL[2]
WORDS = ("red", "blue", "green", "pink", "gray", "cat", "dog", "owl", "hen", "fox", "runs", "sits", "eats")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM = {"role": "system", "content": "say the words again"}

Row = Mapping[str, Any]


def make_model(path: Path, model_type: str = "qwen3", **changes: Any) -> Path:
    """A random model (4 layers, width 128, a BPE tokenizer trained here); `changes`: fields of its config."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(path)
    end = tokenizer.convert_tokens_to_ids(END)
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer) + 1 + len(tokenizer) % 2,  # odd: no layout divides it
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "eos_token_id": end,
        "pad_token_id": 0,
        "bos_token_id": None,
        "initializer_range": 0.05,
        **changes,
    }
    torch.manual_seed(0)
    models: Any = AutoModelForCausalLM  # transformers leaves much of it untyped
    model = models.from_config(AutoConfig.for_model(model_type, **settings), dtype=torch.float32)
    if "index_topk" in changes:  # of a sampled pad token with a zero embedding, all scores would be equal
        torch.nn.init.normal_(model.get_input_embeddings().weight[0], std=0.05)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=0)
    model.save_pretrained(path)
    return path


def chats(count: int, seed: int) -> list[Row]:
    """Prompts as chat messages, with the words to say as the label; those of different seeds are disjoint."""
    draw = random.Random(seed)
    said = [" ".join(draw.choices(WORDS, k=draw.randint(3, 6))) for _ in range(count)]
    return [
        {
            "prompt": [SYSTEM, {"role": "user", "content": f"{seed} {number} {words}"}],
            "label": words,
            "metadata": {"number": number},
        }
        for number, words in enumerate(said)
    ]


def write_jsonl(path: Path, rows: Sequence[Row]) -> Path:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: Sequence[Row]) -> Path:
    """The same rows as a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
    return path


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(_corpus(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=SPECIAL[0], chat_template=CHAT_TEMPLATE
    )


def _corpus() -> Iterator[str]:
    yield "0123456789 system\n user\n assistant\n abcdefghijklmnopqrstuvwxyz"
    for row in chats(400, seed=1):
        yield str(row["label"])
        yield SYSTEM["content"]
