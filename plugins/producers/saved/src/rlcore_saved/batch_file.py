"""A train batch from a safetensors file of rlcore, with the JSON about it in the header."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open

from rlcore import DataError, Json, TrainBatch, parse_json

ABOUT, FORMAT = "rlcore", 1
"""The key of rlcore's JSON in the header, and its `format`."""

_COLUMNS = ("per_token", "per_sample", "per_input")
_PLAIN = ("tokens", "prompt_lengths", "response_lengths")


def load_batch(path: Path) -> TrainBatch:
    """The batch of a file. Raises `DataError`."""
    with _opened(path):
        tensors = safetensors.torch.load_file(path)
    missing = [name for name in _PLAIN if name not in tensors]
    if missing:
        raise DataError(f"{path}: has no {missing[0]!r}, so it is no batch that rlcore saved.")
    prompts, responses = tensors["prompt_lengths"], tensors["response_lengths"]
    inputs = int(prompts.sum() + responses.sum())
    sizes = {
        "tokens": inputs,
        "response_lengths": len(prompts),
        "per_token": int(responses.sum()),
        "per_sample": len(prompts),
        "per_input": inputs,
    }
    fields: dict[str, Any] = {name: tensors[name] for name in _PLAIN} | {kind: {} for kind in _COLUMNS}
    for name, tensor in tensors.items():
        kind, _, column = name.partition(".")
        if kind in sizes and len(tensor) != sizes[kind]:
            raise DataError(f"{path}: {name!r} has {len(tensor)} entries, expected {sizes[kind]}.")
        if kind in _COLUMNS:
            fields[kind][column] = tensor
    return TrainBatch(**fields)


def read_about(path: Path) -> dict[str, Json]:
    """rlcore's JSON in the header. Raises `DataError` where the file has none, or another format."""
    with _opened(path), safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
    try:
        about = parse_json(header[ABOUT])
    except (KeyError, ValueError):
        about = None
    if not isinstance(about, dict):
        raise DataError(f"{path}: its header is not rlcore's, so it is no batch that rlcore saved.")
    if about.get("format") != FORMAT:
        raise DataError(
            f"{path}: format {about.get('format')}, and this rlcore reads format {FORMAT}; save the rollouts "
            "again with this rlcore."
        )
    return about


@contextmanager
def _opened(path: Path) -> Iterator[None]:
    """Errors of the file become a `DataError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be read as safetensors ({error}).") from error
