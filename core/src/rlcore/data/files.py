"""Prompts from a .jsonl or .parquet file. A malformed row stops the run with file, line and reason."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Never

from rlcore.data.config import FileConfig
from rlcore.data.split import content_hash, share
from rlcore.errors import DataError
from rlcore.interfaces import Prompts
from rlcore.types import Json, Messages, Prompt


class FileSource:
    """The prompt source behind `--data`.

    Everything is read and checked at once: a row that is wrong is found before the run starts. Ids are row
    numbers, so that equal prompts stay distinct.
    """

    def __init__(self, config: FileConfig) -> None:
        self._config = config

    def prompts(self) -> Prompts:
        """The prompts of `path` to train on, and a held-out set where the config asks for one."""
        config = self._config
        rows = self._read(Path(config.path), "row")
        if config.eval_path is not None:
            path = Path(config.eval_path)
            held_out = self._read(path, "eval")
            self._refuse_overlap(rows, held_out, path)
            return Prompts(train=rows, held_out={path.stem: held_out})
        if config.eval_fraction == 0:
            return Prompts(train=rows)
        train, held_out = _split(rows, config.eval_fraction)
        if not train or not held_out:
            raise DataError(
                f"{config.path}: eval_fraction {config.eval_fraction} leaves {len(train)} prompts to train on"
                f" and {len(held_out)} held out of {len(rows)}; both must have some."
            )
        return Prompts(train=train, held_out={"held_out": held_out})

    def _read(self, path: Path, prefix: str) -> list[Prompt]:
        prompts = [self._prompt(row, where, f"{prefix}-{number}") for number, where, row in _rows(path)]
        if not prompts:
            raise DataError(f"{path}: the file holds no prompts.")
        return prompts

    def _prompt(self, row: Json, where: str, prompt_id: str) -> Prompt:
        config = self._config
        if not isinstance(row, Mapping):
            raise DataError(f"{where}: expected an object with {config.prompt_key!r}, found {_type(row)}.")
        if row.get(config.prompt_key) is None:
            found = ", ".join(repr(key) for key in row) or "nothing"
            raise DataError(
                f"{where}: no {config.prompt_key!r} (prompt_key names another key); found {found}."
            )
        metadata = row.get(config.metadata_key)
        if metadata is not None and not isinstance(metadata, Mapping):
            raise DataError(f"{where}: {config.metadata_key!r} must be an object, found {_type(metadata)}.")
        text = _text(row[config.prompt_key], f"{where}: {config.prompt_key!r}")
        if config.chat_template and isinstance(text, str):
            text = ({"role": "user", "content": text},)
        return Prompt(
            prompt_id=prompt_id, text=text, label=row.get(config.label_key), metadata=metadata or {}
        )

    def _refuse_overlap(self, train: Sequence[Prompt], held_out: Sequence[Prompt], path: Path) -> None:
        seen = {content_hash(prompt.text): prompt.prompt_id for prompt in train}
        shared = [prompt for prompt in held_out if content_hash(prompt.text) in seen]
        if shared:
            first = shared[0]
            raise DataError(
                f"{path}: {len(shared)} held-out prompts are also in {self._config.path}, the first is"
                f" {first.prompt_id} (there {seen[content_hash(first.text)]}); a held-out prompt must not be"
                f" trained on."
            )


def _split(prompts: Sequence[Prompt], fraction: float) -> tuple[list[Prompt], list[Prompt]]:
    """(train, held out). Held-out prompts are ordered by their hash: the first n are a random choice."""
    hashed = [(content_hash(prompt.text), prompt) for prompt in prompts]
    held_out = [pair for pair in hashed if share(pair[0]) < fraction]
    held_out.sort(key=lambda pair: pair[0])
    train = [prompt for content, prompt in hashed if share(content) >= fraction]
    return train, [prompt for _, prompt in held_out]


def _rows(path: Path) -> Iterator[tuple[int, str, Json]]:
    """(row number from 1, where it stands, row)."""
    if not path.exists():
        raise DataError(f"{path}: no such file.")
    if not path.is_file():
        raise DataError(f"{path}: expected a .jsonl or .parquet file, found a folder.")
    if path.suffix == ".jsonl":
        yield from _jsonl(path)
    elif path.suffix == ".parquet":
        yield from _parquet(path)
    else:
        raise DataError(f"{path}: expected a name that ends in .jsonl or .parquet.")


def _jsonl(path: Path) -> Iterator[tuple[int, str, Json]]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, f"{path}, line {number}", _parse(line, f"{path}, line {number}")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error


def _parse(line: bytes, where: str) -> Json:
    try:
        return json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 at byte {error.start}.") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error.msg} at column {error.colno}.") from error
    except RecursionError as error:
        raise DataError(f"{where}: not JSON that can be read: nested too deeply.") from error
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}.") from error


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is no JSON number")


def _parquet(path: Path) -> Iterator[tuple[int, str, Json]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                for row in batch.to_pylist():
                    number += 1
                    yield number, f"{path}, row {number}", row
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as parquet: {str(error).splitlines()[0]}") from error


def _text(value: Any, where: str) -> str | Messages:
    if isinstance(value, str):
        if not value:
            raise DataError(f"{where} is empty.")
        return _unicode(value, where)
    if not isinstance(value, list):
        raise DataError(f"{where} must be text or a list of chat messages, found {_type(value)}.")
    if not value:
        raise DataError(f"{where} is a chat without messages.")
    return tuple(_message(message, f"{where}, message {number}") for number, message in enumerate(value, 1))


def _message(value: Any, where: str) -> Mapping[str, Json]:
    if not isinstance(value, Mapping):
        raise DataError(f"{where} must be an object with 'role' and 'content', found {_type(value)}.")
    for key in ("role", "content"):
        if not isinstance(value.get(key), str):
            raise DataError(f"{where}: {key!r} must be text, found {_type(value.get(key))}.")
        _unicode(value[key], where)
    # A parquet column gives every message the keys of all: those that are not its own are None.
    return {key: item for key, item in value.items() if item is not None}


def _unicode(text: str, where: str) -> str:
    """JSON can spell half a surrogate pair, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where} is no valid Unicode at character {error.start + 1}.") from error
    return text


def _type(value: Any) -> str:
    """The JSON name of a value's type."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list"}
    return "nothing" if value is None else names.get(type(value), "an object")
