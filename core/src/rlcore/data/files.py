"""Prompts from a .jsonl or .parquet file. A malformed row stops the run with file, line and reason."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Never

from rlcore.data.config import FileConfig
from rlcore.data.rows import Row, answer_text, kind_of, required, response, text_or_chat, whole_chat
from rlcore.data.split import content_hash, share
from rlcore.errors import DataError
from rlcore.interfaces import Prompts
from rlcore.types import Json, Messages, Prompt

_Parse = Callable[[Row, str, str], Prompt]
"""(row, where it stands, prompt id) → the prompt."""


class FileSource:
    """The prompt source behind `--data`.

    Everything is read and checked at once: a row that is wrong is found before the run starts. Ids are row
    numbers, so that equal prompts stay distinct.
    """

    def __init__(self, config: FileConfig) -> None:
        self._config = config

    def prompts(self) -> Prompts:
        """The prompts of `path` to train on, and a held-out set where the config asks for one."""
        return self._split(self._prompt)

    def with_responses(self) -> Prompts:
        """The same, of rows that also hold a response, or a whole chat."""
        return self._split(self._demonstration)

    def with_pairs(self) -> Prompts:
        """The same, of rows that also hold a chosen and a rejected response."""
        return self._split(self._pair)

    def _split(self, parse: _Parse) -> Prompts:
        config = self._config
        rows = self._read(Path(config.path), "row", parse)
        if config.eval_path is not None:
            path = Path(config.eval_path)
            held_out = self._read(path, "eval", partial(self._held_out, parse))
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

    def _read(self, path: Path, prefix: str, parse: _Parse) -> list[Prompt]:
        prompts = []
        for number, where, row in _rows(path):
            if not isinstance(row, Mapping):
                key = self._config.prompt_key
                raise DataError(f"{where}: expected an object with {key!r}, found {kind_of(row)}.")
            prompts.append(parse(row, where, f"{prefix}-{number}"))
        if not prompts:
            raise DataError(f"{path}: the file holds no prompts.")
        return prompts

    def _held_out(self, parse: _Parse, row: Row, where: str, prompt_id: str) -> Prompt:
        """A row that is only evaluated needs no response where it has a label."""
        labeled = all(row.get(key) is not None for key in (self._config.prompt_key, self._config.label_key))
        return (self._prompt if labeled else parse)(row, where, prompt_id)

    def _prompt(self, row: Row, where: str, prompt_id: str) -> Prompt:
        key = self._config.prompt_key
        text = text_or_chat(required(row, key, "prompt_key", where), f"{where}: {key!r}")
        return self._of(row, where, prompt_id, text)

    def _of(self, row: Row, where: str, prompt_id: str, text: str | Messages) -> Prompt:
        config = self._config
        metadata = row.get(config.metadata_key)
        if metadata is not None and not isinstance(metadata, Mapping):
            raise DataError(f"{where}: {config.metadata_key!r} must be an object, found {kind_of(metadata)}.")
        if config.chat_template and isinstance(text, str):
            text = ({"role": "user", "content": text},)
        return Prompt(
            prompt_id=prompt_id, text=text, label=row.get(config.label_key), metadata=metadata or {}
        )

    def _demonstration(self, row: Row, where: str, prompt_id: str) -> Prompt:
        config = self._config
        if row.get(config.messages_key) is None or row.get(config.prompt_key) is not None:
            return self._answered(row, where, prompt_id, (config.response_key, "response_key"))
        asked, answer = whole_chat(row, config, where)
        return _with_responses(self._of(row, where, prompt_id, asked), (answer,))

    def _pair(self, row: Row, where: str, prompt_id: str) -> Prompt:
        keys = (self._config.chosen_key, "chosen_key"), (self._config.rejected_key, "rejected_key")
        return self._answered(row, where, prompt_id, *keys)

    def _answered(self, row: Row, where: str, prompt_id: str, *keys: tuple[str, str]) -> Prompt:
        prompt = self._prompt(row, where, prompt_id)
        for key, setting in keys:
            required(row, key, setting, where)
        given = tuple(response(row, key, prompt.text, self._config, where) for key, _ in keys)
        return _with_responses(prompt, given)

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


def _with_responses(prompt: Prompt, given: tuple[str | Messages, ...]) -> Prompt:
    """A held-out answer is compared with the label, or else with the (better) response."""
    label = answer_text(given[0]) if prompt.label is None else prompt.label
    return replace(prompt, responses=given, label=label)


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
