"""Kimi-K2, Moonlight and Kimi-Linear without the code that comes with them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore_toolkit import readable_copy, write_file

CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
TOKENIZER, RANKS = "tokenizer.json", "tiktoken.model"
NAMES = {
    "max_position_embeddings": "model_max_length",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
"""A field of config.json, and how Kimi-Linear calls it."""
MARK = ".tokenizer.sources"
"""The file of a copy with the hash of what its tokenizer.json was made from."""


def kimi(path: str, cache: Path | None) -> str:
    """The directory `path`, or a copy with a model type and a tokenizer that transformers knows."""
    source = Path(path)
    table = json.loads((source / CONFIG).read_text())
    fields = {"model_type": "deepseek_v3"} if table.get("model_type") == "kimi_k2" else renamed(table)
    has_ranks = (source / RANKS).is_file() and not (source / TOKENIZER).is_file()
    if not fields and not has_ranks:
        return path
    changes: dict[str, dict[str, Any]] = {CONFIG: fields}
    config = source / TOKENIZER_CONFIG
    if has_ranks and config.is_file():
        changes[TOKENIZER_CONFIG] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    copy = readable_copy(source, changes, cache)
    if has_ranks:
        _write_tokenizer(source, copy)
    return str(copy)


def renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config.json that it has by the names of Kimi-Linear alone."""
    return {ours: config[theirs] for ours, theirs in NAMES.items() if theirs in config and ours not in config}


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
