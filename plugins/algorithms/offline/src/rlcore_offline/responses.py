"""The encoder of the data's responses: token ids as the policy would have sampled them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from rlcore import (
    DataError,
    Json,
    Messages,
    ModelError,
    Prompt,
    PromptTokenizer,
    RunConfig,
    Tokenizer,
    text_ids,
    turn_ends,
)

ASSISTANT, TRAIN = "assistant", "train"
"""The role of the messages to learn, and the key that says which of them (`Prompt.responses`)."""

REASONING = ("reasoning_content", "reasoning", "thinking")
"""The keys of a message under which data hold what the assistant thought."""

CHECKED_AHEAD = 1000
"""Prompts whose responses `ResponseEncoder.check` looks at; a later one that does not fit is left out."""


@dataclass(frozen=True, kw_only=True)
class EncodedResponse:
    """A response to learn.

    `loss_mask`: 1 on the tokens that the policy learns to say, stop tokens included.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    truncated: bool


class ResponseEncoder:
    """Encodes responses: a text, followed by the tokenizer's stop token, or messages by the chat template.

    Prompt and response are encoded separately, because generation too starts from the prompt's tokens alone.
    """

    def __init__(self, encoder: PromptTokenizer, max_response_tokens: int) -> None:
        self._encoder = encoder
        self._tokenizer = encoder.tokenizer
        self._limit = max_response_tokens
        self._ends = turn_ends(self._tokenizer)

    @classmethod
    def of(cls, tokenizer: Tokenizer, run: RunConfig) -> ResponseEncoder:
        """The encoder with the limits of a run."""
        sampling = run.sampling
        return cls(PromptTokenizer(tokenizer, sampling.max_prompt_tokens), sampling.max_response_tokens)

    def encode(self, prompt: Prompt, response: str | Messages) -> list[EncodedResponse]:
        """`response` to `prompt`, cut at `max_response_tokens`.

        Usually one, with every trained message of a chat. Some templates rewrite earlier messages as the chat
        grows, for example to drop the reasoning; each message that does not continue the text before it then
        begins another one. Raises `DataError` with the prompt's id where no token to train on is left.
        """
        if isinstance(prompt.text, str):
            assert isinstance(response, str), "the source refuses messages that answer a text"
            stop = self._tokenizer.eos_token_id
            if stop is None:
                raise ModelError("The tokenizer has no eos_token, with which a response to a text must end.")
            ids = self._ids(response)
            ids = ids if ids[-1:] == (stop,) else (*ids, stop)  # the text may end with it
            return [self._response(prompt, self._encoder.encode(prompt), ids, (1,) * len(ids))]
        answer = ({"role": ASSISTANT, "content": response, TRAIN: True},)
        messages = (*prompt.text, *(answer if isinstance(response, str) else response))
        return [
            self._response(prompt, self._encoder.checked(prompt, self._ids(chat.prompt)), chat.ids, chat.mask)
            for chat in self._chats(prompt, messages)
        ]

    def encode_all(self, prompt: Prompt) -> list[list[EncodedResponse]]:
        """Each response to `prompt`. Raises `DataError` also for a pair that is equal, as some once cut."""
        encoded = [self.encode(prompt, response) for response in prompt.responses]
        if len(encoded) == 2 and encoded[0] == encoded[1]:
            raise DataError(
                f"The prompt {prompt.prompt_id!r}: its two responses are equal within the {self._limit} "
                "tokens that --max-response-tokens allows, so they teach nothing."
            )
        return encoded

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Raise now what `encode` would raise later, for the first `CHECKED_AHEAD` prompts."""
        for prompt in islice(prompts, CHECKED_AHEAD):
            self.encode_all(prompt)

    def _chats(self, prompt: Prompt, messages: Messages) -> list[_Chat]:
        chats: list[_Chat] = []
        for place, message in enumerate(messages):
            if not message.get(TRAIN):
                continue
            prompt_text = self._render(prompt, messages[:place], generation=True)
            whole = self._render(prompt, messages[: place + 1], generation=False)
            if not whole.startswith(prompt_text):
                raise DataError(
                    f"The prompt {prompt.prompt_id!r}: the chat template begins an assistant's message "
                    "in another way than its generation prompt does, so it is not clear what to train on."
                )
            if not (chats and prompt_text.startswith(chats[-1].text)):
                chats.append(_Chat(prompt=prompt_text))
            if lost := _left_out(message, whole[len(prompt_text) :]):
                raise DataError(
                    f"The prompt {prompt.prompt_id!r}: the chat template leaves out {lost} of message "
                    f"{place + 1}, so the policy would not learn it; expected a template that writes it, or "
                    "a message without it."
                )
            answer = self._ended(prompt, whole[len(prompt_text) :], messages, place)
            self._extend(chats[-1], prompt_text, answer)
        return chats

    def _ended(self, prompt: Prompt, answer: str, messages: Messages, place: int) -> str:
        """`answer`, the template's text of the message at `place`, up to the token that ends its turn."""
        written = [end.text for end in self._ends if end.written and end.text in answer]
        if written:  # many templates go on behind it, as with a line break, which the policy never says
            return answer[: max(answer.rindex(end) + len(end) for end in written)]
        begins = [end.text for end in self._ends if not end.written]
        if not begins:
            raise DataError(
                f"The prompt {prompt.prompt_id!r}: the chat template ends message {place + 1} with no "
                "special token, so a policy that is trained on it would never stop; expected a template that "
                "ends the assistant's turn with one."
            )
        calls = messages[place].get("tool_calls")
        is_tool = messages[place + 1]["role"] == "tool" if place + 1 < len(messages) else calls
        return answer + begins[-1 if is_tool else 0]

    def _extend(self, chat: _Chat, before: str, answer: str) -> None:
        """Continue the chat to the text `before`, and by `answer`, which is trained on."""
        between = self._ids(before[len(chat.text) :]) if chat.ids else ()
        live = self._ids(answer)
        chat.ids += between + live
        chat.mask += (0,) * len(between) + (1,) * len(live)
        chat.text = before + answer

    def _response(
        self, prompt: Prompt, prompt_ids: tuple[int, ...], ids: tuple[int, ...], mask: tuple[int, ...]
    ) -> EncodedResponse:
        if not any(mask[: self._limit]):
            raise DataError(
                f"The prompt {prompt.prompt_id!r}: no token to train on is left within the "
                f"{self._limit} tokens that --max-response-tokens allows."
            )
        return EncodedResponse(
            prompt_ids=prompt_ids,
            response_ids=ids[: self._limit],
            loss_mask=mask[: self._limit],
            truncated=len(ids) > self._limit,
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        return text_ids(self._tokenizer, text)

    def _render(self, prompt: Prompt, messages: Messages, *, generation: bool) -> str:
        plain = [{key: value for key, value in message.items() if key != TRAIN} for message in messages]
        return self._encoder.template(prompt, plain, generation=generation)


def _left_out(message: Mapping[str, Json], answer: str) -> str | None:
    """What a template's text `answer` lacks of what `message` says: a call, its reasoning, its content."""
    for call in message.get("tool_calls") or ():
        if call["function"]["name"] not in answer:
            return f"the call of {call['function']['name']!r}"
    for key in (*REASONING, "content"):
        value = message.get(key)
        # a template may write a thought that stands in the content in another form
        pieces = re.split("</?think>", value) if isinstance(value, str) else ()
        if any(piece.strip() not in answer for piece in pieces):
            return f"the {key!r}"
    return None


@dataclass(kw_only=True)
class _Chat:
    """A chat being encoded: after the text `prompt` come `ids`, which reach up to the text `text`."""

    prompt: str
    ids: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()
    text: str = ""
