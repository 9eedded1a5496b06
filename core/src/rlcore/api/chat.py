"""Messages to token ids by the tokenizer's chat template, never over tokens that were sampled.

A chat grows by what the model sampled and by what others say. `render_prompt` makes the ids of its begin;
after each answer, `render_suffix` makes those of the new messages alone, which follow the sampled ids as they
are: prompt + sampled + suffix is the next prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlcore.api.errors import DataError, first_line
from rlcore.api.tokens import Tokenizer, template_text, text_ids
from rlcore.api.types import Json, Messages, parse_json

Tools = Sequence[Mapping[str, Json]]
"""JSON schemas as chat templates take them: `{"type": "function", "function": {"name": …, …}}`."""

DEEPSEEK_BEGIN = "<｜tool▁call▁begin｜>"
"""How DeepSeek's models begin a tool call. Their templates take the arguments of a call as JSON text."""

_SEAM = "rlcoreseam"
"""Stands where the sampled text would: what the template writes behind it is the suffix."""


def compile_template(tokenizer: Tokenizer) -> None:
    """Has the chat template compiled: tens of milliseconds, in which all others would wait for the first."""
    with suppress(DataError):  # a template that refuses this chat has been compiled all the same
        render_prompt(tokenizer, [{"role": "user", "content": ""}])


def render_prompt(
    tokenizer: Tokenizer,
    messages: Messages,
    tools: Tools = (),
    options: Mapping[str, Json] | None = None,
) -> tuple[int, ...]:
    """Ids of `messages` and of the begin of the assistant's next one.

    `options`: further variables of the template (`enable_thinking`). Raises `DataError` if the template
    cannot write them.
    """
    return text_ids(tokenizer, chat_text(tokenizer, messages, tools, options))


def render_chat(tokenizer: Tokenizer, messages: Messages, tools: Tools = ()) -> tuple[int, ...]:
    """Ids of `messages` as a whole chat, with nothing to follow. Raises as `render_prompt` does."""
    return text_ids(tokenizer, chat_text(tokenizer, messages, tools, None, generation=False))


def render_suffix(
    tokenizer: Tokenizer,
    before: Messages,
    new: Messages,
    *,
    sampled: Sequence[int],
    tools: Tools = (),
    options: Mapping[str, Json] | None = None,
) -> tuple[int, ...]:
    """Ids that follow `sampled`: the end of the assistant's turn, `new`, and the begin of its next one.

    `before`: the chat so far; its last message is the assistant's that was sampled, whose content is not
    looked at. An end-of-turn token that the model sampled is not repeated; where it was cut off before, it
    is written. A stop token other than the template's stays, as it was sampled, and the template's follows.
    """
    if not before or before[-1].get("role") != "assistant" or not new:
        raise DataError("A chat goes on after a message of the assistant, with at least one new message.")
    # A word that no message holds. The template's text behind it follows the sampled tokens as it is, so that
    # what was sampled is never tokenised again.
    seam = _SEAM
    while any(seam in json.dumps(message) for message in (*before, *new)):
        seam += "x"
    chat = [*before[:-1], {"role": "assistant", "content": seam}, *new]
    _, seam_seen, text = chat_text(tokenizer, chat, tools, options).rpartition(seam)
    if not seam_seen:
        raise DataError("The chat template leaves out what the assistant says before another message.")
    ids = text_ids(tokenizer, text)
    return ids[1:] if ids and _ended(tokenizer, sampled, ids[0]) else ids


def _ended(tokenizer: Tokenizer, sampled: Sequence[int], end: int) -> bool:
    """Whether the model itself wrote `end`, which is a special token and not text that looks alike."""
    return bool(sampled) and sampled[-1] == end and not tokenizer.decode([end], skip_special_tokens=True)


def chat_text(
    tokenizer: Tokenizer,
    messages: Messages,
    tools: Tools,
    options: Mapping[str, Json] | None,
    *,
    generation: bool = True,
) -> str:
    """The text of `messages`, with the begin of the assistant's next one. Raises `DataError`."""
    as_text = DEEPSEEK_BEGIN in (template_text(tokenizer) or "")
    chat: list[Mapping[str, Json]] = [_for_template(said, arguments_as_text=as_text) for said in messages]
    variables: dict[str, Any] = {**(options or {}), **({"tools": list(tools)} if tools else {})}
    try:
        return str(
            tokenizer.apply_chat_template(
                chat, add_generation_prompt=generation, tokenize=False, return_dict=False, **variables
            )
        )
    except Exception as error:  # a template raises jinja2's own errors, a missing one ValueError
        raise DataError(f"The tokenizer cannot format the chat: {first_line(error)}.") from error


def _for_template(message: Mapping[str, Json], *, arguments_as_text: bool) -> dict[str, Json]:
    """`message` as templates expect it: text as one string, arguments of calls as objects, or as JSON."""
    plain = {key: value for key, value in message.items() if value is not None}
    plain["content"] = _joined_text(message.get("content"))
    if calls := plain.get("tool_calls"):
        plain["tool_calls"] = [_call_for_template(call, as_text=arguments_as_text) for call in calls]
    else:
        plain.pop("tool_calls", None)  # some templates ask whether the key is there
    return plain


def _joined_text(content: Json) -> str:
    if isinstance(content, list):
        kinds = {part.get("type") for part in content} - {"text"}
        if kinds:
            raise DataError(f"A message holds {', '.join(map(repr, sorted(kinds)))}; expected text alone.")
        return "".join(part["text"] for part in content)
    return "" if content is None else str(content)


def _call_for_template(call: Mapping[str, Json], *, as_text: bool) -> dict[str, Json]:
    arguments = call["function"].get("arguments") or {}
    if as_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    elif not as_text and isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError as error:
            raise DataError(f"The arguments of a tool call are no JSON: {error}.") from error
    return {"type": "function", **call, "function": {**call["function"], "arguments": arguments}}
