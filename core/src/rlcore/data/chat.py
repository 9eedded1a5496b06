"""Messages to text by the tokenizer's chat template, and the token with which it ends a turn.

`rlcore_toolkit.render_prompt` and its siblings make token ids of chats.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from rlcore.api.errors import DataError, first_line
from rlcore.api.tokens import Tokenizer, template_text, text_ids
from rlcore.api.types import Json, Messages, parse_json

Tools = Sequence[Mapping[str, Json]]
"""JSON schemas as chat templates take them: `{"type": "function", "function": {"name": …, …}}`."""

DEEPSEEK_BEGIN = "<｜tool▁call▁begin｜>"
"""How DeepSeek's models begin a tool call. Their templates take the arguments of a call as JSON text."""

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""What a message's `role` may be. A chat template may name others."""

SEAM = "rlcoreseam"
"""A word that stands where sampled text would: what the template writes behind it follows that text."""

_USER: Mapping[str, Json] = {"role": "user", "content": "1"}
_ANSWER: Mapping[str, Json] = {"role": "assistant", "content": SEAM}
_CALL: Mapping[str, Json] = {
    "role": "assistant",
    "tool_calls": [{"id": "abcdefghi", "function": {"name": "f", "arguments": {"x": SEAM}}}],
}
_RESULT: Mapping[str, Json] = {"role": "tool", "name": "f", "tool_call_id": "abcdefghi", "content": "1"}


@dataclass(frozen=True)
class TurnEnd:
    """The token that ends a turn of the assistant.

    `written`: the template writes it behind the message itself. Else it begins the next role's turn, as
    `<|user|>` in GLM's chats, and a whole chat does not end with it.
    """

    token_id: int
    text: str
    written: bool


def turn_ends(tokenizer: Tokenizer) -> tuple[TurnEnd, ...]:
    """How the chat template ends an answer, and a message with a tool call where that differs.

    Empty: there is no template, or it ends a turn by text alone, which no engine stops at.
    """
    ends = (_turn_end(tokenizer, _ANSWER, _USER), _turn_end(tokenizer, _CALL, _RESULT))
    return tuple(dict.fromkeys(end for end in ends if end))


def _turn_end(tokenizer: Tokenizer, said: Mapping[str, Json], reply: Mapping[str, Json]) -> TurnEnd | None:
    """How a turn with the message `said` ends.

    It is the last special token that follows both where the chat ends and where `reply` comes next. Some
    templates write another end in each case (harmony's `<|return|>`): then the first where the chat ends. Of
    those that write none there, it is the first before `reply`.
    """
    last, before = (_behind_seam(tokenizer, [_USER, said, *more]) for more in ([], [reply]))
    shared = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(last, before, strict=False))]
    for ids, place, written in ((shared, -1, True), (last, 0, True), (before, 0, False)):
        if special := [token for token in ids if is_special(tokenizer, token)]:
            token = special[place]
            return TurnEnd(token, tokenizer.decode([token], skip_special_tokens=False), written)
    return None


def answer_header(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids that the chat template writes before an answer, where special tokens are among them.

    Empty: it writes none, or text alone, such as an empty thought.
    """
    try:
        begin = chat_text(tokenizer, [_USER], (), None)
        header, seam, _ = chat_text(tokenizer, [_USER, _ANSWER], (), None, generation=False).partition(SEAM)
    except DataError:
        return ()
    ids = text_ids(tokenizer, header.removeprefix(begin)) if seam and header.startswith(begin) else ()
    return ids if any(is_special(tokenizer, token) for token in ids) else ()


def _behind_seam(tokenizer: Tokenizer, messages: Messages) -> tuple[int, ...]:
    """Ids of the text behind the seam; none where the template refuses the chat or leaves the seam out."""
    try:
        _, seam, text = chat_text(tokenizer, messages, (), None, generation=False).rpartition(SEAM)
    except DataError:
        return ()
    return text_ids(tokenizer, text) if seam else ()


def is_special(tokenizer: Tokenizer, token: int) -> bool:
    """Whether `token` is special, and not text that looks alike."""
    hidden, shown = (tokenizer.decode([token], skip_special_tokens=skip) for skip in (True, False))
    return bool(shown) and not hidden


def chat_text(
    tokenizer: Tokenizer,
    messages: Messages,
    tools: Tools,
    options: Mapping[str, Json] | None,
    *,
    generation: bool = True,
    continue_final_message: bool = False,
) -> str:
    """The text of `messages`, with the begin of the assistant's next one. Raises `DataError`.

    `generation=False`: the whole chat alone. `continue_final_message`: the last message, which is the
    assistant's, is not ended.
    """
    template = template_text(tokenizer) or ""
    as_text = DEEPSEEK_BEGIN in template
    for role in {str(message.get("role")) for message in messages} - ROLES:
        if not re.search(rf"\b{re.escape(role)}\b", template):
            raise DataError(f"A message has the role {role!r}, which the chat template does not know.")
    chat: list[Mapping[str, Json]] = [_for_template(said, arguments_as_text=as_text) for said in messages]
    variables: dict[str, Any] = {**(options or {}), "continue_final_message": continue_final_message}
    if tools:
        variables["tools"] = list(tools)
    begins = generation and not continue_final_message
    try:
        return str(
            tokenizer.apply_chat_template(
                chat, add_generation_prompt=begins, tokenize=False, return_dict=False, **variables
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
