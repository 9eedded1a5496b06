"""What a row of a prompt file holds, checked: texts, chats, and the responses that it gives."""

from collections.abc import Mapping
from typing import Any

from rlcore.data.config import FileConfig
from rlcore.errors import DataError
from rlcore.types import Json, Messages

ASSISTANT = "assistant"
TRAIN = "train"
"""Key of a response's message whose False keeps it out of the loss."""

Row = Mapping[str, Json]


def required(row: Row, key: str, setting: str, where: str) -> Json:
    """The value of `key`, which the setting of the source names."""
    if row.get(key) is None:
        found = ", ".join(repr(name) for name in row) or "nothing"
        raise DataError(f"{where}: no {key!r} ({setting} names another key); found {found}.")
    return row[key]


def text_or_chat(value: Any, where: str) -> str | Messages:
    """A text that is not empty, or messages with `role` and `content`."""
    if isinstance(value, str):
        if not value:
            raise DataError(f"{where} is empty.")
        return _unicode(value, where)
    if not isinstance(value, list):
        raise DataError(f"{where} must be text or a list of chat messages, found {kind_of(value)}.")
    if not value:
        raise DataError(f"{where} is a chat without messages.")
    return tuple(_message(message, f"{where}, message {number}") for number, message in enumerate(value, 1))


def whole_chat(row: Row, config: FileConfig, where: str) -> tuple[Messages, Messages]:
    """(the messages before the assistant's first, the others), the response that it is trained on."""
    where = f"{where}: {config.messages_key!r}"
    messages = text_or_chat(row[config.messages_key], where)
    if isinstance(messages, str):
        raise DataError(f"{where} must be a list of chat messages, found text.")
    first = next((i for i, message in enumerate(messages) if message["role"] == ASSISTANT), None)
    if not first:
        found = "begins with one" if first == 0 else "has none"
        raise DataError(f"{where} {found}: expected messages, then one of the role 'assistant'.")
    _trained(messages[:first], config, where, 1)
    return messages[:first], _some_trained(messages[first:], config, where, first + 1)


def response(row: Row, key: str, prompt: str | Messages, config: FileConfig, where: str) -> str | Messages:
    """What `row[key]` answers to `prompt`: a text, or to a chat also messages that go on with it.

    Only a rejected text may be empty: a policy that ends at once is worth rejecting.
    """
    if key == config.rejected_key and row[key] == "":
        return ""
    where = f"{where}: {key!r}"
    found = text_or_chat(row[key], where)
    if isinstance(found, str):
        return found
    if isinstance(prompt, str):
        raise DataError(f"{where} is a list of chat messages, but {config.prompt_key!r} is a text.")
    if found[0]["role"] != ASSISTANT:
        raise DataError(f"{where}, message 1: found role {found[0]['role']!r}, expected 'assistant'.")
    return _some_trained(found, config, where, 1)


def answer_text(given: str | Messages) -> str:
    """The text of a response: of messages, the assistant's first."""
    return given if isinstance(given, str) else str(given[0]["content"])


def _trained(messages: Messages, config: FileConfig, where: str, start: int) -> Messages:
    """The messages with a bool under `TRAIN` in each of the assistant's and in no other."""
    marked = []
    for number, message in enumerate(messages, start):
        flag = message.get(config.train_key, message["role"] == ASSISTANT)
        if flag not in (True, False):
            said = f"{where}, message {number}: {config.train_key!r}"
            raise DataError(f"{said} must be true or false, found {kind_of(flag)}.")
        if flag and message["role"] != ASSISTANT:
            raise DataError(
                f"{where}, message {number}: {config.train_key!r} is true, but its role is "
                f"{message['role']!r}; only messages of the role 'assistant' are trained on."
            )
        plain = {key: value for key, value in message.items() if key != config.train_key}
        marked.append({**plain, TRAIN: bool(flag)} if message["role"] == ASSISTANT else plain)
    return tuple(marked)


def _some_trained(messages: Messages, config: FileConfig, where: str, start: int) -> Messages:
    marked = _trained(messages, config, where, start)
    if not any(message.get(TRAIN) for message in marked):
        raise DataError(f"{where}: no message is trained on.")
    return marked


def _message(value: Any, where: str) -> Row:
    if not isinstance(value, Mapping):
        raise DataError(f"{where} must be an object with 'role' and 'content', found {kind_of(value)}.")
    for key in ("role", "content"):
        if not isinstance(value.get(key), str):
            raise DataError(f"{where}: {key!r} must be text, found {kind_of(value.get(key))}.")
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


def kind_of(value: Any) -> str:
    """The JSON name of a value's type."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list"}
    return "nothing" if value is None else names.get(type(value), "an object")
