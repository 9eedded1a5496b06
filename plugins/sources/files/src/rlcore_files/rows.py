"""Reads and checks a row of a prompt file: its prompt, its tools, its responses."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from rlcore import DataError, Json, Messages, parse_json
from rlcore_files.config import FileConfig

ASSISTANT = "assistant"
TRAIN = "train"
"""Key of a message in a response: `"train": false` leaves it out of the loss."""

SHAREGPT = {"human": "user", "gpt": ASSISTANT}
"""ShareGPT's `from` → the role. Any other name stays; a chat template need not know it."""

DEPTH = 100
"""Objects and lists within each other that a row may hold: each process that copies it goes into them."""

MEDIA = ("image", "video", "audio")
_TEXT_ALONE = "is more than text, and no model or engine of this build takes more"

Row = Mapping[str, Json]


def value(row: Row, key: str) -> Json:
    """The value of `key`, or of `a.b` where the object `a` has a key `b`; None: there is none.

    A key of the row that has dots itself comes first.
    """
    first, _, rest = key.partition(".")
    if key in row or not rest:
        return row.get(key)
    inner = row.get(first)
    return value(inner, rest) if isinstance(inner, Mapping) else None


def required(row: Row, key: str, setting: str, where: str) -> Json:
    """The `value` of `key`. `DataError` where the row has none; `setting`: the setting that names the key."""
    content = value(row, key)
    if content is None:
        if key in row:
            raise DataError(f"{where}: {key!r} is null.")
        names = ", ".join(repr(name) for name in row) or "nothing"
        flag = f"--source.{setting.replace('_', '-')}"
        raise DataError(f"{where}: no {key!r} ({flag} names another key); found {names}.")
    return content


def require_json(content: Any, where: str, key: str) -> None:
    """`DataError` where `content` is no JSON, as a date or bytes in a parquet column are not."""
    try:
        if _deeper_than(DEPTH, content):
            raise ValueError(f"it is nested more than {DEPTH} deep")
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: {key!r} is no JSON ({error}); write it as text or numbers, or leave it out."
        ) from error
    _unicode(text, f"{where}: {key!r}")


def _deeper_than(levels: int, content: Any) -> bool:
    if not isinstance(content, Mapping | list):
        return False
    inner = content.values() if isinstance(content, Mapping) else content
    return levels == 0 or any(_deeper_than(levels - 1, item) for item in inner)


def chat_columns(row: Row) -> list[str]:
    """The columns of a row that hold a chat, as a list or as its JSON text."""
    return [key for key, content in row.items() if _is_chat(_chat_of(content))]


def _is_chat(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and all(map(_is_message, content))


def _is_message(item: Any) -> bool:
    forms = ({"role", "content"}, {"role", "tool_calls"}, {"from", "value"})
    return isinstance(item, Mapping) and any(form <= item.keys() for form in forms)


def _chat_of(content: Any) -> Any:
    """`content`, or the chat whose JSON text it is: databases and tables often hold one so."""
    if isinstance(content, str) and content.lstrip().startswith("["):
        with contextlib.suppress(ValueError):
            if _is_chat(chat := parse_json(content)):
                return chat
    return content


def prompt_of(value: Any, where: str) -> str | Messages:
    """A text that is not empty, or messages with `role` and `content`, also as JSON text."""
    return text_or_chat(_chat_of(value), where)


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


def refuse_media(row: Row, where: str) -> None:
    """Raises `DataError` where a row comes with images, audio or video, which rlcore cannot train on."""
    for key in MEDIA:
        for name in (key, f"{key}s"):
            if row.get(name) not in (None, [], "", {}):
                raise DataError(f"{where}: {name!r} {_TEXT_ALONE}; leave out what needs it.")


def tools(row: Row, config: FileConfig, where: str) -> tuple[Row, ...]:
    """The tools of a row, from its own column or its metadata: a list, or a list as JSON text."""
    row_name, where = where, f"{where}: {config.tools_key!r}"
    listed = value(row, config.tools_key)
    if listed is None and isinstance(metadata := value(row, config.metadata_key), Mapping):
        listed = metadata.get(config.tools_key)
    if listed:
        listed = _from_text(listed, where)
    if not listed:
        return ()
    if not isinstance(listed, list) or not all(isinstance(tool, Mapping) for tool in listed):
        raise DataError(f"{where} must be a list of objects, one for each tool, found {kind_of(listed)}.")
    require_json(listed, row_name, config.tools_key)
    return tuple(listed)


def without_filling(row: Row, config: FileConfig) -> Row:
    """A row of a parquet file, whose chats and tools lose the keys that are None.

    In a parquet column every object has the keys of all, most of them None.
    """
    names = ("prompt_key", "response_key", "messages_key", "chosen_key", "rejected_key", "tools_key")
    keys = {str(getattr(config, name)).partition(".")[0] for name in names}
    row = {key: _without_none(content) if key in keys else content for key, content in row.items()}
    if isinstance(metadata := value(row, config.metadata_key), dict) and config.tools_key in metadata:
        metadata[config.tools_key] = _without_none(metadata[config.tools_key])
    return row


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def whole_chat(row: Row, config: FileConfig, where: str) -> tuple[Messages, Messages]:
    """A chat as prompt and response: the messages before the assistant's first, and the rest."""
    where = f"{where}: {config.messages_key!r}"
    messages = prompt_of(value(row, config.messages_key), where)
    if isinstance(messages, str):
        raise DataError(f"{where} must be a list of chat messages, found text.")
    first = next((i for i, message in enumerate(messages) if message["role"] == ASSISTANT), None)
    if not first:
        fault = "begins with one" if first == 0 else "has none"
        raise DataError(f"{where} {fault}: expected messages, then one of the role 'assistant'.")
    _trained(messages[:first], config, where, 1)
    return messages[:first], _some_trained(messages[first:], config, where, first + 1)


def response(row: Row, key: str, prompt: str | Messages, config: FileConfig, where: str) -> str | Messages:
    """The response to `prompt` under `key`: a text, or messages that continue the chat.

    Only a rejected text may be empty, since a policy should learn not to answer nothing.
    """
    given = value(row, key)
    if key == config.rejected_key and given == "":
        return ""
    where = f"{where}: {key!r}"
    answer = text_or_chat(given, where)
    if isinstance(answer, str):
        return answer
    if isinstance(prompt, str):
        raise DataError(f"{where} is a list of chat messages, but {config.prompt_key!r} is a text.")
    if answer[0]["role"] != ASSISTANT:
        raise DataError(f"{where}, message 1: found role {answer[0]['role']!r}, expected 'assistant'.")
    return _some_trained(answer, config, where, 1)


def pair_of_chats(row: Row, config: FileConfig) -> Row:
    """A row; where its responses are whole chats, as UltraFeedback's, what both begin with is the prompt."""
    chosen, rejected = row.get(config.chosen_key), row.get(config.rejected_key)
    if not (isinstance(chosen, list) and isinstance(rejected, list) and chosen):
        return row
    if not isinstance(chosen[0], Mapping) or chosen[0].get("role") == ASSISTANT:
        return row
    pairs = enumerate(zip(chosen, rejected, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), min(len(chosen), len(rejected)))
    parts = {config.prompt_key: chosen[:same], config.chosen_key: chosen[same:]}
    return {**row, **parts, config.rejected_key: rejected[same:]}


def answer_text(given: str | Messages) -> str:
    """The text of a response. Of messages: the assistant's first one."""
    return given if isinstance(given, str) else str(given[0]["content"])


def _trained(messages: Messages, config: FileConfig, where: str, start: int) -> Messages:
    """The messages with `train` set to true or false in each of the assistant's, and in no other."""
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
    if "role" not in value and {"from", "value"} <= value.keys():
        others = {key: content for key, content in value.items() if key not in ("from", "value")}
        value = {"role": SHAREGPT.get(value["from"], value["from"]), "content": value["value"], **others}
    message = {key: content for key, content in value.items() if content is not None}
    if message.get("tool_calls"):
        message["tool_calls"] = _calls(message["tool_calls"], f"{where}: 'tool_calls'")
    message["content"] = _content(message, where)
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            raise DataError(f"{where}: {key!r} must be text, found {kind_of(message.get(key))}.")
        _unicode(message[key], where)
    for key, content in message.items():
        require_json(content, where, key)
    return message


def _calls(calls: Any, where: str) -> list[Row]:
    """Tool calls in OpenAI's form, of a list or its JSON text.

    A call may have `name` and `arguments` at its top. No arguments are an empty object; JSON text
    is parsed.
    """
    calls = _from_text(calls, where)
    if not isinstance(calls, list):
        raise DataError(f"{where} must be a list of calls, found {kind_of(calls)}.")
    return [_call(call, f"{where}, call {number}") for number, call in enumerate(calls, 1)]


def _call(call: Any, where: str) -> Row:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(
            f"{where} must be an object with the 'name' of a function, or with such a 'function'."
        )
    arguments = function.get("arguments")
    arguments = {} if arguments in (None, "") else _from_text(arguments, f"{where}: 'arguments'")
    if not isinstance(arguments, Mapping):
        raise DataError(f"{where}: 'arguments' must be an object, found {kind_of(arguments)}.")
    called = {"name": function["name"], "arguments": arguments}
    if function is call:
        return {"type": "function", "function": called}
    return {"type": "function", **call, "function": {**function, **called}}


def _from_text(content: Any, where: str) -> Json:
    """`content`, or what its JSON text holds."""
    if not isinstance(content, str):
        return content
    try:
        return parse_json(content)
    except ValueError as error:
        raise DataError(f"{where} is no JSON: {error}.") from error


def _content(message: Row, where: str) -> Json:
    """The content of a message as one text. Parts are joined; beside tool calls it may be empty."""
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return ""
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        return content
    for part in content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise DataError(f"{where}: a part of type {part.get('type')!r} {_TEXT_ALONE}.")
    return "".join(part["text"] for part in content)


def _unicode(text: str, where: str) -> str:
    """`text`, or `DataError`: JSON can contain half of a surrogate pair, which tokenizers refuse."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where} is no valid Unicode at character {error.start + 1}.") from error
    return text


def kind_of(value: Any) -> str:
    """The JSON name of a value's type."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list"}
    return "nothing" if value is None else names.get(type(value), "an object")
