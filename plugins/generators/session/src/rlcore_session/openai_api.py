"""OpenAI's chat completions: requests to `Ask`, turns to answers and streams.

https://platform.openai.com/docs/api-reference/chat. What would change the distribution that is sampled from,
or what the policy cannot do, is refused rather than passed over.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rlcore import Json
from rlcore_session.chats import MAX_STOPS, ApiError, Ask, Body, Turn, shaped, text_of

NEUTRAL: Mapping[str, tuple[Json, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "tool_choice": ("auto", "none"),
    "response_format": ({"type": "text"},),
    "functions": ([],),
}
"""Fields that may only say what is done anyway."""

TEMPLATE_ARGUMENTS = (
    *("enable_thinking", "thinking", "reasoning_effort", "clear_thinking", "preserve_thinking"),
    "model_identity",
)
"""What a request may tell the chat template; other names mean the template itself, or how it is used."""

Stops = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(max_length=MAX_STOPS),
    BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
]


class CalledFunction(Body):
    """`arguments`: as JSON, or what that says."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Body):
    """A call in a message of the assistant."""

    id: str | None = None
    function: CalledFunction


class Message(Body):
    """`content`: see `text_of`."""

    role: str
    content: Any = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None


class ToolFunction(Body):
    """What a tool is called, and the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Body):
    """A function that the policy may call."""

    function: ToolFunction


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool | None = None


class ChatRequest(Body):
    """The body of a request; the neutral fields are read by `NEUTRAL`, numbers of tokens by `positive`."""

    messages: list[Message] = Field(default_factory=list)
    tools: list[Tool] | None = None
    chat_template_kwargs: (
        dict[str, bool | int | float | Annotated[str, Field(max_length=256)] | None] | None
    ) = None
    model: str | None = None
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None


ROLES = {"system", "developer", "user", "assistant", "tool"}
Decode = Callable[[list[int]], str]


def read_ask(body: Mapping[str, Any]) -> Ask:
    """The request. Raises `ApiError` for what cannot be done."""
    for name, allowed in NEUTRAL.items():
        value = body.get(name)
        if value is not None and value not in allowed:
            raise ApiError(400, f"{name}: found {value!r}, which is not offered; leave it out.")
    request = shaped(ChatRequest, body)
    if not request.messages:
        raise ApiError(400, "messages: expected a list of at least one message.")
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    options = request.chat_template_kwargs or {}
    if unknown := sorted(set(options) - set(TEMPLATE_ARGUMENTS)):
        raise ApiError(
            400,
            f"chat_template_kwargs: {unknown[0]!r} is not offered; expected some of "
            f"{', '.join(TEMPLATE_ARGUMENTS)}.",
        )
    return Ask(
        messages=[_message(message, f"messages[{place}]") for place, message in enumerate(body["messages"])],
        tools=() if body.get("tool_choice") == "none" else tuple(body.get("tools") or ()),
        options=options,
        model=request.model or "policy",
        max_tokens=positive(most, "max_completion_tokens"),
        stop=tuple(request.stop or ()),
        stream=bool(request.stream),
        usage=bool(request.stream_options and request.stream_options.include_usage),
        log_probs=bool(request.logprobs),
        asks_sampling=asks_sampling(body),
        n=positive(body.get("n"), "n") or 1,
    )


def asks_sampling(body: Mapping[str, Any]) -> bool:
    """Whether a request names how to sample, which is the run's to say."""
    return any(body.get(name) is not None for name in ("temperature", "top_p", "top_k", "seed"))


def positive(value: Any, name: str) -> int | None:
    """A number of tokens or answers, if there is one."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ApiError(400, f"{name}: found {value!r}, expected an integer of at least 1.")
    return value


def _message(message: Mapping[str, Any], where: str) -> dict[str, Json]:
    role = message["role"]
    if role not in ROLES:
        raise ApiError(400, f"{where}: found the role {role!r}, expected one of {', '.join(sorted(ROLES))}.")
    plain: dict[str, Json] = {
        "role": "system" if role == "developer" else role,
        "content": text_of(message.get("content"), where),
    }
    if role == "tool":
        plain["tool_call_id"] = message.get("tool_call_id")
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [_call(call) for call in calls]
    return plain


def _call(call: Mapping[str, Any]) -> dict[str, Json]:
    function = call["function"]
    arguments = function.get("arguments") or "{}"
    called = {"name": function["name"], "arguments": arguments}
    return {"id": call.get("id"), "type": "function", "function": called}


def answer(ask: Ask, turns: Sequence[Turn], decode: Decode) -> dict[str, Json]:
    """The body of a chat completion, with a choice for each of `turns`."""
    choices = [
        {
            "index": index,
            "message": {**turn.message, "content": turn.content or None, "refusal": None},
            "finish_reason": turn.finish,
            "logprobs": _log_probs(turn, decode) if ask.log_probs else None,
        }
        for index, turn in enumerate(turns)
    ]
    return {**_head(ask, turns, "chat.completion"), "choices": choices, "usage": _usage(turns)}


def events(ask: Ask, turns: Sequence[Turn], decode: Decode) -> Iterator[str]:
    """The lines of a stream of the same, one choice after the other."""
    head = _head(ask, turns, "chat.completion.chunk")
    for index, turn in enumerate(turns):
        yield from _chunks(head, index, turn, decode if ask.log_probs else None)
    if ask.usage:
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': _usage(turns)})}\n\n"
    yield "data: [DONE]\n\n"


def _chunks(head: Mapping[str, Json], index: int, turn: Turn, decode: Decode | None) -> Iterator[str]:
    """The chunks of one choice. `decode`: with log-probs."""

    def chunk(delta: Json, finish: str | None = None, log_probs: Json = None) -> str:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": log_probs}
        return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"

    yield chunk({"role": "assistant", "content": ""})
    if turn.content or decode:
        yield chunk({"content": turn.content}, log_probs=_log_probs(turn, decode) if decode else None)
    for place, call in enumerate(turn.calls):
        function = {"name": call.name, "arguments": ""}
        yield chunk(
            {"tool_calls": [{"index": place, "id": call.id, "type": "function", "function": function}]}
        )
        yield chunk({"tool_calls": [{"index": place, "function": {"arguments": call.arguments}}]})
    yield chunk({}, turn.finish)


def error_body(error: ApiError) -> dict[str, Json]:
    """What OpenAI's clients read of a failed request."""
    kind = {400: "invalid_request_error", 401: "authentication_error"}.get(error.status, "server_error")
    return {"error": {"message": error.message, "type": kind, "param": None, "code": error.code}}


def models(name: str) -> dict[str, Json]:
    """The list of models: the policy, whatever an agent calls it."""
    return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "rlcore"}]}


def _head(ask: Ask, turns: Sequence[Turn], kind: str) -> dict[str, Json]:
    return {"id": f"chatcmpl-{turns[0].id}", "object": kind, "created": int(time.time()), "model": ask.model}


def _usage(turns: Sequence[Turn]) -> dict[str, int]:
    read, said = turns[0].completion.prompt_tokens, sum(len(turn.completion.token_ids) for turn in turns)
    return {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}


def _log_probs(turn: Turn, decode: Decode) -> Json:
    """The log-prob of every sampled token, the end of the turn included."""
    content = []
    for token, log_prob in zip(turn.completion.token_ids, turn.completion.log_probs, strict=True):
        text = decode([token])
        content.append({"token": text, "logprob": log_prob, "bytes": list(text.encode()), "top_logprobs": []})
    return {"content": content, "refusal": None}
