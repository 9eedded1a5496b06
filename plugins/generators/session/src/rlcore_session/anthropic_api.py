"""Anthropic's messages: requests to `Ask`, turns to answers and streams.

https://docs.anthropic.com/en/api/messages. Inside, a chat is what OpenAI's protocol calls one, so an agent
may speak both in one session.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from rlcore import Json
from rlcore_session.chats import ApiError, Ask, Body, Call, Turn, shaped, text_of
from rlcore_session.openai_api import Stops, asks_sampling, positive

STOP_REASON = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Choice(Body):
    """A choice of tools, or of thinking."""

    type: str | None = None


class Block(Body):
    """A part of a message; `name`, `input` and `id` are those of a `tool_use`."""

    type: str
    name: str = ""
    input: dict[str, Any] | None = None
    id: str | None = None
    tool_use_id: str | None = None


class Message(Body):
    """One of the user or of the assistant."""

    role: str
    content: str | list[Block] | None = None


class Tool(Body):
    """`input_schema`: see `_tool`."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class MessagesRequest(Body):
    """The body of a request; numbers of tokens are read by `positive`, `system` by `text_of`."""

    messages: list[Message] = Field(default_factory=list)
    tools: list[Tool] | None = None
    tool_choice: Choice | None = None
    thinking: Choice | None = None
    model: str | None = None
    stop_sequences: Stops | None = None
    stream: bool | None = None


def read_ask(body: Mapping[str, Any]) -> Ask:
    """The request. Raises `ApiError` for what cannot be done."""
    request = shaped(MessagesRequest, body)
    choice = (request.tool_choice and request.tool_choice.type) or "auto"
    if choice not in ("auto", "none"):
        raise ApiError(400, f"tool_choice: found {choice!r}, which is not offered; leave it out.")
    if request.thinking and request.thinking.type == "enabled":
        raise ApiError(400, "thinking: not offered; what the policy thinks is part of its text.")
    if not request.messages:
        raise ApiError(400, "messages: expected a list of at least one message.")
    system = text_of(body.get("system"), "system")
    chat: list[dict[str, Json]] = [{"role": "system", "content": system}] if system else []
    for place, message in enumerate(body["messages"]):
        chat += _messages(message, f"messages[{place}]")
    return Ask(
        messages=chat,
        tools=() if choice == "none" else tuple(_tool(tool) for tool in body.get("tools") or ()),
        model=request.model or "policy",
        max_tokens=positive(body.get("max_tokens"), "max_tokens"),
        stop=tuple(request.stop_sequences or ()),
        stream=bool(request.stream),
        asks_sampling=asks_sampling(body),
    )


def _tool(tool: Mapping[str, Any]) -> dict[str, Json]:
    if tool.get("input_schema") is None:
        raise ApiError(
            400, f"tools: found {tool.get('type')!r}; the policy calls tools with an input_schema alone."
        )
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    return {"type": "function", "function": {**function, "description": tool.get("description") or ""}}


def _messages(message: Mapping[str, Any], where: str) -> list[dict[str, Json]]:
    """One message of Anthropic's is several: each result of a tool is one, before what the user says."""
    role = message["role"]
    if role not in ("user", "assistant"):
        raise ApiError(400, f"{where}: found the role {role!r}, expected user or assistant.")
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    kinds: dict[str, list[Any]] = {"tool_result" if role == "user" else "tool_use": [], "text": []}
    for block in blocks:
        kind = block["type"]
        if kind not in kinds:
            raise ApiError(400, f"{where}: a block of type {kind!r}; expected {' or '.join(kinds)}.")
        kinds[kind].append(block)
    text = text_of([{"type": "text", "text": block.get("text")} for block in kinds["text"]], where)
    if role == "assistant":
        calls = [_call(block) for block in kinds["tool_use"]]
        said: dict[str, Json] = {"role": role, "content": text}
        return [{**said, "tool_calls": calls} if calls else said]
    results: list[dict[str, Json]] = []
    for block in kinds["tool_result"]:
        content = text_of(block.get("content"), where)
        results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content})
    return [*results, {"role": role, "content": text}] if kinds["text"] or not results else results


def _call(block: Mapping[str, Any]) -> dict[str, Json]:
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    function = {"name": block.get("name", ""), "arguments": arguments}
    return {"id": block.get("id"), "type": "function", "function": function}


def answer(ask: Ask, turn: Turn) -> dict[str, Json]:
    """The body of a message."""
    blocks: list[dict[str, Json]] = [{"type": "text", "text": turn.content}] if turn.content else []
    blocks += [{**_use(call), "input": json.loads(call.arguments)} for call in turn.calls]
    return {**_head(ask, turn), "content": blocks, **_end(turn), "usage": _usage(turn)}


def events(ask: Ask, turn: Turn) -> Iterator[str]:
    """The lines of a stream of the same."""
    usage = {"input_tokens": turn.completion.prompt_tokens, "output_tokens": 0}
    empty = {**_head(ask, turn), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield _event("message_start", message=empty)
    for index, (start, delta) in enumerate(_deltas(turn)):
        yield _event("content_block_start", index=index, content_block=start)
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta=_end(turn), usage=_usage(turn))
    yield _event("message_stop")


def error_body(error: ApiError) -> dict[str, Json]:
    """What Anthropic's clients read of a failed request."""
    kind = {400: "invalid_request_error", 401: "authentication_error"}.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def _deltas(turn: Turn) -> Iterator[tuple[Json, Json]]:
    """(begin, rest) of each block."""
    if turn.content:
        yield {"type": "text", "text": ""}, {"type": "text_delta", "text": turn.content}
    for call in turn.calls:
        yield {**_use(call), "input": {}}, {"type": "input_json_delta", "partial_json": call.arguments}


def _use(call: Call) -> dict[str, Json]:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def _event(kind: str, **fields: Json) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def _head(ask: Ask, turn: Turn) -> dict[str, Json]:
    return {"id": f"msg_{turn.id}", "type": "message", "role": "assistant", "model": ask.model}


def _end(turn: Turn) -> dict[str, Json]:
    reason = "stop_sequence" if turn.stopped_by and not turn.calls else STOP_REASON[turn.finish]
    return {"stop_reason": reason, "stop_sequence": turn.stopped_by}


def _usage(turn: Turn) -> dict[str, int]:
    return {"input_tokens": turn.completion.prompt_tokens, "output_tokens": len(turn.completion.token_ids)}
