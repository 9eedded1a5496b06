"""What the two protocols have in common: an `Ask` in the words of chat templates, and the `Turn` it gets."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from rlcore import Completion, Json, parse_json

MAX_STOPS = 16
"""Stop strings of one request."""
TOO_LONG = "context_length_exceeded"
"""The code, by which clients know it, of a request whose chat does not fit."""


class ApiError(Exception):
    """A request that is refused: an HTTP status, a kind in the protocol's words, and one sentence."""

    def __init__(self, status: int, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class Body(BaseModel):
    """The shape of a request: fields that nobody reads are let through, as the SDKs send some."""

    model_config = ConfigDict(strict=True, extra="allow")


B = TypeVar("B", bound=Body)


def shaped(kind: type[B], body: Mapping[str, Any]) -> B:
    """The request as `kind`. Raises `ApiError` for the first field that has another type."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "The body"
        raise ApiError(400, f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}.") from error


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request for the assistant's next message.

    `messages`: `role`, `content` as one text, and where they are there `tool_calls` (in OpenAI's form) and
    `tool_call_id`. `options`: further variables of the chat template. `asks_sampling`: the request names a
    temperature or a cut of its own. `usage`: a stream is to end with the counts of tokens. `size`: bytes of
    the request. `n`: how many answers it asks for.
    """

    messages: Sequence[Mapping[str, Json]]
    tools: Sequence[Mapping[str, Json]] = ()
    options: Mapping[str, Json] = field(default_factory=dict)
    model: str = "policy"
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    usage: bool = False
    log_probs: bool = False
    asks_sampling: bool = False
    size: int = 0
    n: int = 1


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call of a turn. `arguments`: JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What the policy said.

    `finish`: "stop", "length" or "tool_calls"; `stopped_by`: the request's stop string that ended it.
    """

    id: str
    content: str
    calls: tuple[Call, ...]
    finish: str
    stopped_by: str | None
    completion: Completion

    @property
    def message(self) -> dict[str, Json]:
        """The message that a chat template takes, and that the agent sends back."""
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.calls
        ]
        message: dict[str, Json] = {"role": "assistant", "content": self.content}
        return {**message, "tool_calls": calls} if calls else message


def chat_keys(ask: Ask) -> Iterator[str]:
    """For each message, what tells the chat up to it from others: tools and template variables included."""
    key = _digest("", [list(ask.tools), dict(ask.options)])
    for message in ask.messages:
        key = next_key(key, message)
        yield key


def next_key(key: str, message: Mapping[str, Json]) -> str:
    """The key of a chat that goes on with `message`.

    White space around an assistant's text, the spelling of its calls' arguments and the ids of calls do not
    count: agents do not always return them as they got them.
    """
    return _digest(key, _essence(message))


def _digest(key: str, value: Json) -> str:
    return hashlib.blake2b(json.dumps([key, value], sort_keys=True).encode(), digest_size=16).hexdigest()


def _essence(message: Mapping[str, Json]) -> Json:
    role, content = message["role"], message.get("content") or ""
    if role != "assistant":
        return [role, content]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return [role, content.strip(), [[call["name"], _parsed(call["arguments"])] for call in calls]]


def _parsed(arguments: Any) -> Json:
    try:
        return parse_json(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def text_of(content: Json, where: str) -> str:
    """One text of a text or a list of its parts. Raises `ApiError` for anything else."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{where}: content is neither a text nor a list of parts.")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not (isinstance(part, Mapping) and isinstance(part.get("text"), str)):
            raise ApiError(400, f"{where}: content of type {kind!r}; the policy reads text alone.")
    return "".join(part["text"] for part in content)
