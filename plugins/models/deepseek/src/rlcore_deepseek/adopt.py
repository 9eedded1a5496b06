"""Kimi-K2 and Moonlight, DeepSeek-V3 with another tokenizer, without the code that comes with them."""

import json
from pathlib import Path
from typing import Any

from rlcore_toolkit import readable_copy, write_file

CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
TOKENIZER, RANKS = "tokenizer.json", "tiktoken.model"


def kimi(path: str) -> str:
    """The directory `path`, or a copy with a model type and a tokenizer that transformers knows."""
    source = Path(path)
    is_kimi = json.loads((source / CONFIG).read_text()).get("model_type") == "kimi_k2"
    has_ranks = (source / RANKS).is_file() and not (source / TOKENIZER).is_file()
    if not is_kimi and not has_ranks:
        return path
    changes: dict[str, dict[str, Any]] = {CONFIG: {"model_type": "deepseek_v3"}}
    config = source / TOKENIZER_CONFIG
    if has_ranks and config.is_file():
        changes[TOKENIZER_CONFIG] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    copy = readable_copy(source, changes)
    if has_ranks and not (copy / TOKENIZER).is_file():
        from rlcore_deepseek.tiktoken import tokenizer_json

        added = json.loads(config.read_text()).get("added_tokens_decoder", {}) if config.is_file() else {}
        write_file(copy / TOKENIZER, tokenizer_json(source / RANKS, added))
    return str(copy)
