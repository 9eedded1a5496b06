"""Kimi-K2 and Moonlight, DeepSeek-V3 with another tokenizer, without the code that comes with them."""

import hashlib
import json
from pathlib import Path
from typing import Any

from rlcore_toolkit import readable_copy, write_file

CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
TOKENIZER, RANKS = "tokenizer.json", "tiktoken.model"
MARK = ".tokenizer.sources"
"""The file of a copy with the hash of what its tokenizer.json was made from."""


def kimi(path: str, cache: Path | None) -> str:
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
    copy = readable_copy(source, changes, cache)
    if has_ranks:
        _write_tokenizer(source, copy)
    return str(copy)


def _write_tokenizer(source: Path, copy: Path) -> None:
    """Write the tokenizer.json of `copy`, unless it was made from the files that `source` has now."""
    config, ranks = source / TOKENIZER_CONFIG, (source / RANKS).read_bytes()
    text = config.read_text() if config.is_file() else "{}"
    mark = hashlib.sha256(ranks + text.encode()).hexdigest()
    if (copy / TOKENIZER).is_file() and (copy / MARK).is_file() and (copy / MARK).read_text() == mark:
        return
    from rlcore_deepseek.tiktoken import tokenizer_json

    write_file(
        copy / TOKENIZER, tokenizer_json(source / RANKS, json.loads(text).get("added_tokens_decoder", {}))
    )
    write_file(copy / MARK, mark)  # last, so that an interrupted writer leaves an old mark
