"""Chats to token ids, never over tokens that were sampled.

A chat grows by what the model sampled and by what others say. `render_prompt` makes the ids of its begin;
after each answer, `render_suffix` makes those of the new messages alone, which follow the sampled ids as they
are: prompt + sampled + suffix is the next prompt.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

from rlcore import (
    SEAM,
    DataError,
    Json,
    Messages,
    Tokenizer,
    Tools,
    chat_text,
    is_special,
    text_ids,
    turn_ends,
)


def compile_template(tokenizer: Tokenizer) -> None:
    """Has the chat template compiled: tens of milliseconds, in which all others would wait for the first."""
    with suppress(DataError):  # a template that refuses this chat has been compiled all the same
        render_prompt(tokenizer, [{"role": "user", "content": ""}])


def render_prompt(
    tokenizer: Tokenizer, messages: Messages, tools: Tools = (), options: Mapping[str, Json] | None = None
) -> tuple[int, ...]:
    """Ids of `messages` and of the begin of the assistant's next one.

    Where the last message is the assistant's, it is not ended, so that the model goes on with it. `options`:
    further variables of the template (`enable_thinking`). Raises `DataError` if the template cannot write
    them.
    """
    going_on = bool(messages) and messages[-1].get("role") == "assistant"
    text = chat_text(tokenizer, messages, tools, options, continue_final_message=going_on)
    return text_ids(tokenizer, text)


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
    seam = SEAM
    while any(seam in json.dumps(message) for message in (*before, *new)):
        seam += "x"
    chat = [*before[:-1], {"role": "assistant", "content": seam}, *new]
    _, seam_seen, text = chat_text(tokenizer, chat, tools, options).rpartition(seam)
    if not seam_seen:
        raise DataError("The chat template leaves out what the assistant says before another message.")
    ids = text_ids(tokenizer, text)
    return ids[_ended_within(tokenizer, sampled, ids) :]


def _ended_within(tokenizer: Tokenizer, sampled: Sequence[int], ids: Sequence[int]) -> int:
    """How many of `ids` the model need not be told, because it ended the turn itself.

    A template may write another end in the middle of a chat than the model does (harmony's `<|end|>`, where
    the model says `<|return|>`): that one is left out too.
    """
    if not sampled or not is_special(tokenizer, sampled[-1]):
        return 0
    first = next((place for place, token in enumerate(ids) if is_special(tokenizer, token)), len(ids))
    if tokenizer.decode(ids[:first], skip_special_tokens=True).strip() or first == len(ids):
        return 0
    if ids[first] == sampled[-1]:
        return first + 1
    ends = [end.token_id for end in turn_ends(tokenizer) if end.written]
    if sampled[-1] not in ends:
        return 0
    return ids.index(sampled[-1]) + 1 if sampled[-1] in ids else first + 1
