"""Prompts from a .jsonl or .parquet file. A malformed row stops the run with file, line and reason."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import PurePath

from rlcore import DataError, Json, Messages, Portion, Prompt, Prompts, SourceMix, content_hash, content_share
from rlcore_files.config import DATA_SOURCE, ORDERS, FileConfig
from rlcore_files.hub import files_at
from rlcore_files.lazy import LazyPrompts, chosen, sliced
from rlcore_files.locations import Location
from rlcore_files.rows import (
    ASSISTANT,
    Row,
    answer_text,
    chat_columns,
    kind_of,
    pair_of_chats,
    prompt_of,
    refuse_media,
    require_json,
    required,
    response,
    tools,
    value,
    whole_chat,
    without_filling,
)
from rlcore_files.storage import row_file

_Parse = Callable[[Row, str, str], Prompt]
"""(row, where it stands, prompt id) → the prompt."""


OPTIONAL_KEYS = ("label_key", "metadata_key", "tools_key")
"""Settings that name what a row may lack."""


class FileSource:
    """The prompt source behind `--data`.

    It reads and checks every row when the run starts, so a malformed one is found before training. Prompt ids
    are row numbers, so equal prompts stay distinct; with several files, the file's name stands in front.
    """

    def __init__(self, config: FileConfig) -> None:
        self._config = config
        self._columns: dict[str, None] = {}
        self._unseen = {
            key for key in OPTIONAL_KEYS if getattr(config, key) != FileConfig.model_fields[key].default
        }
        self._not_copied = (config.named_columns - {config.label_key}) | ORDERS

    def files(self) -> list[str]:
        """Paths and URLs of the prompts to train on."""
        return [file for location in self._config.locations for file in files_at(location.path)]

    def prompts(self) -> Prompts:
        """The prompts of `path` to train on, and a held-out set where the config asks for one."""
        return self._split(self._prompt)

    def with_responses(self) -> Prompts:
        """Prompts of rows that also hold a response, or a whole chat."""
        return self._split(self._demonstration)

    def with_pairs(self) -> Prompts:
        """Prompts of rows that also hold a chosen and a rejected response."""
        return self._split(self._pair)

    def _split(self, parse: _Parse) -> Prompts:
        config, locations = self._config, self._config.locations
        parts = [(location, *self._portion(location, parse)) for location in locations]
        train: Sequence[Prompt] = parts[0][1]
        if locations[0].name:
            portions = [Portion(name=at.name, weight=at.weight, prompts=rows) for at, rows, _ in parts]
            train = SourceMix(portions)
        if config.eval_path is not None:
            location = Location.parse(config.eval_path)
            held_out = self._read(location, "eval", partial(self._held_out, parse))
            self._refuse_overlap(train, held_out, location.path)
            self._require_seen()
            held = {PurePath(location.path).stem: held_out}
            return Prompts(train=train, held_out=held, columns=tuple(self._columns))
        self._require_seen()
        sets = {location.name or "held_out": prompts for location, _, prompts in parts if prompts}
        return Prompts(train=train, held_out=sets, columns=tuple(self._columns))

    def _require_seen(self) -> None:
        """DataError where no row has a key that the user named; streamed rows are yet to come."""
        for key in () if self._config.streaming else sorted(self._unseen):
            named, found = getattr(self._config, key), ", ".join(map(repr, self._columns))
            raise DataError(f"--source.{key.replace('_', '-')}: no row has {named!r}; found {found}.")

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
            self._columns = self._columns or dict.fromkeys(row)
            self._unseen -= {
                key for key in self._unseen if value(row, getattr(self._config, key)) is not None
            }
            if not file.is_json:
                row = without_filling(row, self._config)
            prompt = parse(row, where, f"{prefix}-{number}")
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
            raise DataError(
                f"{location.path}: the {'file' if location.is_whole else 'slice'} holds no prompts."
            )
        return prompts

    def _held_out(self, parse: _Parse, row: Row, where: str, prompt_id: str) -> Prompt:
        """A row that is only evaluated needs no response where it has a label."""
        keys = (self._config.prompt_key, self._config.label_key)
        labeled = all(value(row, key) is not None for key in keys)
        return (self._prompt if labeled else parse)(row, where, prompt_id)

    def _prompt(self, row: Row, where: str, prompt_id: str) -> Prompt:
        key = self._config.prompt_key
        refuse_media(row, where)
        text = prompt_of(required(row, key, "prompt_key", where), f"{where}: {key!r}")
        if _ends_with_answer(text) and not self._config.continue_final_message:
            raise DataError(
                f"{where}: {key!r} ends with a message of the assistant, which is told to answer; leave the "
                "message out, or add --source.continue-final-message to let the policy go on with it."
            )
        return self._of(row, where, prompt_id, text)

    def _of(self, row: Row, where: str, prompt_id: str, text: str | Messages) -> Prompt:
        config = self._config
        metadata = value(row, config.metadata_key)
        if metadata is not None and not isinstance(metadata, Mapping):
            raise DataError(f"{where}: {config.metadata_key!r} must be an object, found {kind_of(metadata)}.")
        if config.columns_as_metadata:
            others = {key: content for key, content in row.items() if key not in self._not_copied}
            metadata = {**others, **(metadata or {})}
        if DATA_SOURCE in row:
            metadata = {DATA_SOURCE: row[DATA_SOURCE], **(metadata or {})}
        if config.chat_template and isinstance(text, str):
            text = ({"role": "user", "content": text},)
        shown = tools(row, config, where)
        kwargs = "--source.chat-template-kwargs are" if config.chat_template_kwargs else ""
        for_chats = kwargs or (f"{config.tools_key!r} is" if shown else "")
        if for_chats and isinstance(text, str):
            raise DataError(
                f"{where}: {for_chats} for a chat template, but {config.prompt_key!r} is a text; "
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
        is_answered = (
            value(row, config.prompt_key) is not None and value(row, config.response_key) is not None
        )
        if value(row, config.messages_key) is None or is_answered:
            if value(row, config.prompt_key) is None and (chats := chat_columns(row)):
                raise DataError(
                    f"{where}: no {config.prompt_key!r} and no {config.messages_key!r}; found a chat in "
                    f"{chats[0]!r}, expected --source.messages-key {chats[0]}."
                )
            return self._answered(row, where, prompt_id, (config.response_key, "response_key"))
        refuse_media(row, where)
        chat, answer = whole_chat(row, config, where)
        return _with_responses(self._of(row, where, prompt_id, chat), (answer,))

    def _pair(self, row: Row, where: str, prompt_id: str) -> Prompt:
        keys = (self._config.chosen_key, "chosen_key"), (self._config.rejected_key, "rejected_key")
        return self._answered(pair_of_chats(row, self._config), where, prompt_id, *keys)

    def _answered(self, row: Row, where: str, prompt_id: str, *keys: tuple[str, str]) -> Prompt:
        prompt = self._prompt(row, where, prompt_id)
        if _ends_with_answer(prompt.text):
            raise DataError(
                f"{where}: {self._config.prompt_key!r} ends with a message of the assistant, and a response "
                "cannot go on with it; put its text at the beginning of the response."
            )
        for key, setting in keys:
            required(row, key, setting, where)
        return _with_responses(
            prompt, tuple(response(row, key, prompt.text, self._config, where) for key, _ in keys)
        )

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


def _ends_with_answer(text: str | Messages) -> bool:
    """Whether the last message of a chat is the assistant's."""
    return not isinstance(text, str) and text[-1]["role"] == ASSISTANT


def _with_responses(prompt: Prompt, responses: tuple[str | Messages, ...]) -> Prompt:
    """`prompt` with its responses.

    Without a label, the (better) response becomes the label of an evaluation.
    """
    label = answer_text(responses[0]) if prompt.label is None else prompt.label
    return replace(prompt, responses=responses, label=label)


def _split(prompts: Sequence[Prompt], fraction: float) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
    """(train, held out). Held-out prompts are ordered by their hash: the first n are a random choice."""
    hashes = array("Q", (content_hash(prompt.text) for prompt in prompts))
    held_out = [place for place, content in enumerate(hashes) if content_share(content) < fraction]
    held_out.sort(key=lambda place: hashes[place])
    train = (place for place, content in enumerate(hashes) if content_share(content) >= fraction)
    return chosen(prompts, train), chosen(prompts, held_out)
