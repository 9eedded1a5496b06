"""A train batch as a safetensors file, with JSON about it in the header."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open

from rlcore.api.batch import TrainBatch
from rlcore.api.errors import DataError
from rlcore.api.types import Json, parse_json
from rlcore.disk import replace_file

ABOUT = "rlcore"
"""The key of rlcore's JSON in the header."""

_COLUMNS = ("per_token", "per_sample", "per_input")
_PLAIN = ("tokens", "prompt_lengths", "response_lengths")


def save_batch(batch: TrainBatch, path: Path, about: Mapping[str, Json] | None = None) -> None:
    """The tensors by their names, those of columns as `per_token.NAME`, `per_sample.NAME`, `per_input.NAME`.

    The file appears whole or not at all. Raises CheckpointError.
    """
    tensors = {name: getattr(batch, name) for name in _PLAIN}
    for kind in _COLUMNS:
        tensors |= {f"{kind}.{name}": tensor for name, tensor in getattr(batch, kind).items()}
    # safetensors refuses views with gaps.
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with replace_file(path) as draft:
        safetensors.torch.save_file(whole, draft, {ABOUT: json.dumps(dict(about or {}))})


def load_batch(path: Path) -> TrainBatch:
    """What `save_batch` wrote. Raises `DataError`."""
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
    """rlcore's JSON in the header. Raises `DataError` where the file has none."""
    with _opened(path), safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
    try:
        about = parse_json(header[ABOUT])
    except (KeyError, ValueError):
        about = None
    if not isinstance(about, dict):
        raise DataError(f"{path}: its header is not rlcore's, so it is no batch that rlcore saved.")
    return about


@contextmanager
def _opened(path: Path) -> Iterator[None]:
    """Errors of the file become a `DataError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be read as safetensors ({error}).") from error
