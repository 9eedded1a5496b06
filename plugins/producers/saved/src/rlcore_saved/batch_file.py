"""A train batch from a safetensors file of rlcore, with the JSON about it in the header."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlcore import Column, DataError, Json, PluginError, TrainBatch, parse_json

ABOUT, FORMAT = "rlcore", 1
"""The key of rlcore's JSON in the header, and its `format`."""

_PLAIN = ("tokens", "prompt_lengths", "response_lengths")
_COLUMNS = TypeAdapter(dict[str, Column])


def load_batch(path: Path) -> TrainBatch:
    """The batch of a file. Raises `DataError`."""
    with _opened(path):
        tensors = safetensors.torch.load_file(path)
    missing = [name for name in _PLAIN if name not in tensors]
    if missing:
        raise DataError(f"{path}: has no {missing[0]!r}, so it is no batch that rlcore saved.")
    prompts, responses = tensors["prompt_lengths"], tensors["response_lengths"]
    sizes = {"tokens": int(prompts.sum() + responses.sum()), "response_lengths": len(prompts)}
    for field, size in sizes.items():
        _check_entries(path, field, tensors[field], size)
    tables: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        table, _, column = name.partition(".")
        if column:
            tables.setdefault(table, {})[column] = tensor
    try:
        columns = _COLUMNS.validate_python((_header(path) or {}).get("columns", {}))
        fields: dict[str, Any] = {**{name: tensors[name] for name in _PLAIN}, **tables}
        batch = TrainBatch(**fields, columns=columns)
        for name, declaration in batch.columns.items():
            per = declaration.per
            count = int(batch.entries(declaration).sum())
            _check_entries(path, f"per_{per}.{name}", batch.tables[per][name], count)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{path}: its header declares columns wrongly: {at}: {first['msg'].removeprefix('Value error, ')}"
        ) from error
    except (PluginError, TypeError) as error:
        raise DataError(f"{path}: its columns are not as its header declares them: {error}") from error
    return batch


def _check_entries(path: Path, name: str, tensor: Tensor, expected: int) -> None:
    if len(tensor) != expected:
        raise DataError(f"{path}: {name!r} has {len(tensor)} entries, expected {expected}.")


def read_about(path: Path) -> dict[str, Json]:
    """rlcore's JSON in the header. Raises `DataError` where the file has none, or another format."""
    about = _header(path)
    if about is None:
        raise DataError(f"{path}: its header is not rlcore's, so it is no batch that rlcore saved.")
    if about.get("format") != FORMAT:
        raise DataError(
            f"{path}: format {about.get('format')}, and this rlcore reads format {FORMAT}; save the rollouts "
            "again with this rlcore."
        )
    return about


def _header(path: Path) -> dict[str, Json] | None:
    """rlcore's JSON in the header; None where there is none."""
    with _opened(path), safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
    try:
        about = parse_json(header[ABOUT])
    except (KeyError, ValueError):
        return None
    return about if isinstance(about, dict) else None


@contextmanager
def _opened(path: Path) -> Iterator[None]:
    """Errors of the file become a `DataError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: cannot be read as safetensors ({error}).") from error
