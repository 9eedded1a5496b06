"""Prompts from a .jsonl or .parquet file. A malformed row stops the run with file, line and reason."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import PurePath

from rlcore import (
    DataError,
    Json,
    Messages,
    Portion,
    Prompt,
    Prompts,
    SourceMix,
    content_hash,
    content_share,
)
from rlcore_files.config import ORDERS, FileConfig
from rlcore_files.lazy import LazyPrompts, chosen, sliced
from rlcore_files.locations import Location
from rlcore_files.rows import (
    Row,
    answer_text,
    kind_of,
    refuse_media,
    require_json,
    required,
    response,
    text_or_chat,
    tools,
    value,
    whole_chat,
)
from rlcore_files.storage import row_file

_Parse = Callable[[Row, str, str], Prompt]
"""(row, where it stands, prompt id) → the prompt."""


class FileSource:
    """The prompt source behind `--data`.

    It reads and checks every row when the run starts, so a malformed one is found before training. Prompt ids
    are row numbers, so equal prompts stay distinct; with several files, the file's name stands in front.
    """

    def __init__(self, config: FileConfig) -> None:
        self._config = config
        self._not_copied = config.named_columns | ORDERS

    def files(self) -> list[str]:
        """Paths and URLs of the prompts to train on."""
        return [location.path for location in self._config.locations]

    def prompts(self) -> Prompts:
        """The prompts of `path` to train on, and a held-out set where the config asks for one."""
        return self._split(self._prompt)

    def with_responses(self) -> Prompts:
        """As `prompts`, of rows that also hold a response, or a whole chat."""
        return self._split(self._demonstration)

    def with_pairs(self) -> Prompts:
        """As `prompts`, of rows that also hold a chosen and a rejected response."""
        return self._split(self._pair)

    def _split(self, parse: _Parse) -> Prompts:
        config, locations = self._config, self._config.locations
        parts = [(location, *self._portion(location, parse)) for location in locations]
        train: Sequence[Prompt] = parts[0][1]
        if locations[0].name:
            train = SourceMix(
                [
                    Portion(name=location.name, weight=location.weight, prompts=rows)
                    for location, rows, _ in parts
                ]
            )
        if config.eval_path is not None:
            location = Location.parse(config.eval_path)
            held_out = self._read(location, "eval", partial(self._held_out, parse))
            self._refuse_overlap(train, held_out, location.path)
            return Prompts(train=train, held_out={PurePath(location.path).stem: held_out})
        return Prompts(
            train=train, held_out={location.name or "held_out": held for location, _, held in parts if held}
        )

    def _portion(self, location: Location, parse: _Parse) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
        """The prompts of one file: those to train on, and those held out by `eval_fraction`."""
        rows = self._read(location, f"{location.name}/row" if location.name else "row", parse)
        fraction = self._config.eval_fraction
        if fraction == 0:
            return rows, []
        train, held_out = _split(rows, fraction)
        if not train or not held_out:
            raise DataError(
                f"{location.path}: --source.eval-fraction {fraction} leaves {len(train)} prompts to train on"
                f" and {len(held_out)} held out of {len(rows)}; both must have some."
            )
        return train, held_out

    def _read(self, location: Location, prefix: str, parse: _Parse) -> Sequence[Prompt]:
        file = row_file(location.path)

        def read(row: Json, where: str, number: int) -> Prompt:
            if not isinstance(row, Mapping):
                key = self._config.prompt_key
                raise DataError(f"{where}: expected an object with {key!r}, found {kind_of(row)}.")
            prompt = parse(row, where, f"{prefix}-{number}")
            if not file.is_json:  # else it was parsed as such
                require_json(prompt.label, where, self._config.label_key)
                for key, content in prompt.metadata.items():
                    require_json(content, where, key)
            return prompt

        prompts: Sequence[Prompt]
        with closing(file.rows()) as every:
            rows = sliced(every, location)
            if self._config.streaming:
                prompts = LazyPrompts.of(file, read, rows)
            else:
                prompts = [read(located.row, file.where(located.number), located.number) for located in rows]
        if not prompts:
            raise DataError(f"{location.path}: the file holds no prompts.")
        return prompts

    def _held_out(self, parse: _Parse, row: Row, where: str, prompt_id: str) -> Prompt:
        """A row that is only evaluated needs no response where it has a label."""
        labeled = all(
            value(row, key) is not None for key in (self._config.prompt_key, self._config.label_key)
        )
        return (self._prompt if labeled else parse)(row, where, prompt_id)

    def _prompt(self, row: Row, where: str, prompt_id: str) -> Prompt:
        key = self._config.prompt_key
        refuse_media(row, where)
        text = text_or_chat(required(row, key, "prompt_key", where), f"{where}: {key!r}")
        return self._of(row, where, prompt_id, text)

    def _of(self, row: Row, where: str, prompt_id: str, text: str | Messages) -> Prompt:
        config = self._config
        metadata = value(row, config.metadata_key)
        if metadata is not None and not isinstance(metadata, Mapping):
            raise DataError(f"{where}: {config.metadata_key!r} must be an object, found {kind_of(metadata)}.")
        if config.columns_as_metadata:
            others = {key: content for key, content in row.items() if key not in self._not_copied}
            metadata = {**others, **(metadata or {})}
        if config.chat_template and isinstance(text, str):
            text = ({"role": "user", "content": text},)
        shown = tools(row, config, where)
        if config.chat_template_kwargs and isinstance(text, str):
            raise DataError(
                f"{where}: --source.chat-template-kwargs are for a chat template, but {config.prompt_key!r} "
                "is a text; give messages, or add --source.chat-template."
            )
        if shown and isinstance(text, str):
            raise DataError(
                f"{where}: {config.tools_key!r} is for a chat template, but {config.prompt_key!r} is a text; "
                "give messages, or add --source.chat-template."
            )
        return Prompt(
            prompt_id=prompt_id,
            text=text,
            label=value(row, config.label_key),
            metadata=dict(metadata or {}),
            tools=shown,
            chat_template_kwargs=config.chat_template_kwargs,
        )

    def _demonstration(self, row: Row, where: str, prompt_id: str) -> Prompt:
        config = self._config
        if value(row, config.messages_key) is None or value(row, config.prompt_key) is not None:
            return self._answered(row, where, prompt_id, (config.response_key, "response_key"))
        refuse_media(row, where)
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

    def _refuse_overlap(self, train: Sequence[Prompt], held_out: Sequence[Prompt], path: str) -> None:
        kept_out = {content_hash(prompt.text): prompt.prompt_id for prompt in held_out}
        hashed = ((content_hash(prompt.text), prompt.prompt_id) for prompt in train)
        shared = {content: prompt_id for content, prompt_id in hashed if content in kept_out}
        if shared:
            content = next(content for content in kept_out if content in shared)
            trained = ", ".join(location.path for location in self._config.locations)
            raise DataError(
                f"{path}: {len(shared)} held-out prompts are also in {trained}, the first is"
                f" {kept_out[content]} (there {shared[content]}); a held-out prompt must not be trained on."
            )


def _with_responses(prompt: Prompt, given: tuple[str | Messages, ...]) -> Prompt:
    """`prompt` with its responses.

    Without a label, the (better) response becomes the label of an evaluation.
    """
    label = answer_text(given[0]) if prompt.label is None else prompt.label
    return replace(prompt, responses=given, label=label)


def _split(prompts: Sequence[Prompt], fraction: float) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
    """(train, held out). Held-out prompts are ordered by their hash: the first n are a random choice."""
    hashes = array("Q", (content_hash(prompt.text) for prompt in prompts))
    held_out = [place for place, content in enumerate(hashes) if content_share(content) < fraction]
    held_out.sort(key=lambda place: hashes[place])
    train = (place for place, content in enumerate(hashes) if content_share(content) >= fraction)
    return chosen(prompts, train), chosen(prompts, held_out)
