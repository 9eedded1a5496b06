"""From the data's responses to token ids, as the policy would have sampled them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from rlcore import (
    DataError,
    Messages,
    ModelError,
    Prompt,
    PromptTokenizer,
    RunConfig,
    Tokenizer,
    text_ids,
)

ASSISTANT, TRAIN = "assistant", "train"
"""The role of the messages to learn, and the key that says which of them (`Prompt.responses`)."""

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

    @classmethod
    def of(cls, tokenizer: Tokenizer, run: RunConfig) -> ResponseEncoder:
        """With the limits of a run."""
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
            ids = (*self._ids(response), stop)
            return [self._given(prompt, self._encoder.encode(prompt), ids, (1,) * len(ids))]
        answer = ({"role": ASSISTANT, "content": response, TRAIN: True},)
        messages = (*prompt.text, *(answer if isinstance(response, str) else response))
        return [
            self._given(prompt, self._encoder.checked(prompt, self._ids(chat.asked)), chat.ids, chat.mask)
            for chat in self._chats(prompt, messages)
        ]

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Raise now what `encode` would raise later, for the first `CHECKED_AHEAD` prompts."""
        for prompt in islice(prompts, CHECKED_AHEAD):
            for response in prompt.responses:
                self.encode(prompt, response)

    def _chats(self, prompt: Prompt, messages: Messages) -> list[_Chat]:
        chats: list[_Chat] = []
        for place, message in enumerate(messages):
            if not message.get(TRAIN):
                continue
            asked = self._render(prompt, messages[:place], generation=True)
            whole = self._render(prompt, messages[: place + 1], generation=False)
            if not whole.startswith(asked):
                raise DataError(
                    f"The prompt {prompt.prompt_id!r}: the chat template begins an assistant's message "
                    "in another way than its generation prompt does, so it is not clear what to train on."
                )
            if not (chats and asked.startswith(chats[-1].whole)):
                chats.append(_Chat(asked=asked))
            self._say(chats[-1], asked, whole)
        return chats

    def _say(self, chat: _Chat, asked: str, whole: str) -> None:
        """Continue the chat to the text `whole`.

        What follows `asked` is trained on, up to its last stop token.
        """
        between = self._ids(asked[len(chat.said) :]) if chat.ids else ()
        # Many templates go on after the stop token, as with a line break, which the policy never says.
        said, stop, _ = whole[len(asked) :].rpartition(self._tokenizer.eos_token or "\0")
        live = self._ids(said + stop if stop else whole[len(asked) :])
        chat.ids += between + live
        chat.mask += (0,) * len(between) + (1,) * len(live)
        chat.said = asked + said + stop if stop else whole
        chat.whole = whole

    def _given(
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


@dataclass(kw_only=True)
class _Chat:
    """A chat being encoded: after the text `asked` come `ids`, which reach up to the text `said`.

    `whole`: the text of the template so far.
    """

    asked: str
    ids: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()
    said: str = ""
    whole: str = ""
