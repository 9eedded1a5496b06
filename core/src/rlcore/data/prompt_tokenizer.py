"""Prompts to token ids."""

import logging
import re
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rlcore.api.errors import DataError
from rlcore.api.tokens import CHECKED_AHEAD, Tokenizer, load_tokenizer, template_text, text_ids
from rlcore.api.types import Messages, Prompt
from rlcore.data.chat import chat_text
from rlcore_machine.time_limit import time_limit

_LONGEST, _CHARACTERS_A_TOKEN = 2**20, 64
"""A text is refused before it is tokenized if it has more characters than this, in all or for each allowed
token.
"""
TEMPLATE_S = 5.0
"""Seconds that a chat template may take for the first chat, with its compilation."""

_log = logging.getLogger(__name__)


class PromptTokenizer:
    """Messages become ids by the tokenizer's chat template, and a text by the tokenizer alone.

    A text gets no special token but the one that the tokenizer begins every text with, as Llama's and Gemma's
    do.
    """

    def __init__(self, tokenizer: Tokenizer, max_prompt_tokens: int) -> None:
        self.tokenizer = tokenizer
        begin = tokenizer.encode("", add_special_tokens=True)[:1]
        self._begin = tuple(token for token in begin if token == getattr(tokenizer, "bos_token_id", None))
        self._limit = max_prompt_tokens
        self._rendered = self._shows_tools = False
        self._variables: set[str] = set()

    @classmethod
    def load(cls, path: str | Path, *, max_prompt_tokens: int) -> "PromptTokenizer":
        """From the tokenizer of a local Hugging Face directory."""
        return cls(load_tokenizer(path), max_prompt_tokens)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of `prompt`.

        Raises `DataError` as `checked`; a text that cannot fit is not even tokenized.
        """
        longest = _LONGEST + _CHARACTERS_A_TOKEN * self._limit
        if isinstance(prompt.text, str) and len(prompt.text) > longest:
            raise DataError(
                f"The prompt {prompt.prompt_id!r} has {len(prompt.text)} characters;"
                f" --max-prompt-tokens allows {self._limit} tokens."
            )
        return self.checked(prompt, self._ids(prompt))

    def checked(self, prompt: Prompt, ids: tuple[int, ...]) -> tuple[int, ...]:
        """`ids`, the token ids of `prompt`. `DataError` with its id where there are too many, or none."""
        if not ids:
            raise DataError(f"The prompt {prompt.prompt_id!r} has no tokens.")
        if len(ids) > self._limit:
            raise DataError(
                f"The prompt {prompt.prompt_id!r} has {len(ids)} tokens;"
                f" --max-prompt-tokens allows {self._limit}."
            )
        return ids

    def check(self, prompts: Iterable[Prompt]) -> None:
        """Raise now what `encode` would raise later, for the first `CHECKED_AHEAD` prompts.

        A text with at most as many bytes as tokens are allowed need not be tokenized: nearly every token has
        at least a byte. Where a tokenizer's normalizer adds to the text, `encode` still refuses the prompt
        later.
        """
        for prompt in islice(prompts, CHECKED_AHEAD):
            if not isinstance(prompt.text, str) or len(prompt.text.encode()) + 1 > self._limit:
                self.encode(prompt)

    def unknown(self, prompts: Iterable[Prompt]) -> str:
        """Characters of the first `CHECKED_AHEAD` prompts and labels for which the tokenizer has no token.

        The model can neither see nor write them.
        """
        unk = getattr(self.tokenizer, "unk_token_id", None)
        if unk is None:
            return ""
        used: set[str] = set()
        for prompt in islice(prompts, CHECKED_AHEAD):
            used.update(*(text for text in (prompt.text, prompt.label) if isinstance(text, str)))
        encode = self.tokenizer.encode
        return "".join(each for each in sorted(used) if unk in encode(each, add_special_tokens=False))

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt.text, str):
            ids = text_ids(self.tokenizer, prompt.text)
            return ids if ids[:1] == self._begin else (*self._begin, *ids)
        # jinja ignores a variable that a template does not use: a misspelt one would have no effect.
        for name in prompt.chat_template_kwargs.keys() - self._variables:
            if not re.search(rf"\b{re.escape(name)}\b", template_text(self.tokenizer) or ""):
                raise DataError(
                    f"The prompt {prompt.prompt_id!r} has {name!r} for the chat template, but the "
                    "tokenizer's has no such variable."
                )
            self._variables.add(name)
        going_on = prompt.text[-1].get("role") == "assistant"
        with time_limit(TEMPLATE_S) if not self._rendered else nullcontext():
            text = self.template(prompt, prompt.text, continue_final_message=going_on)
        # A template of a model for images may take content in parts alone: all prompts would be the same.
        last = prompt.text[-1]
        content = last.get("content") or ""
        pieces = [content] if isinstance(content, str) else [part["text"] for part in content]
        if last.get("role") == "user" and any(piece.strip() not in text for piece in pieces):
            raise DataError(
                f"The prompt {prompt.prompt_id!r}: the chat template leaves out its last message."
            )
        ids = text_ids(self.tokenizer, text)
        if not self._rendered and ids[:1] != self._begin != ():
            _log.warning(
                "Chats begin without %r, with which the tokenizer begins a text: its template writes none.",
                self.tokenizer.decode(self._begin, skip_special_tokens=False),
            )
        self._rendered = True
        # Once is enough: whether a template shows tools does not depend on the prompt.
        if prompt.tools and not self._shows_tools:
            if text == self.template(replace(prompt, tools=()), prompt.text, continue_final_message=going_on):
                raise DataError(
                    f"The prompt {prompt.prompt_id!r} has tools, but the chat template of the tokenizer shows"
                    " none; expected a model that was made for tools."
                )
            self._shows_tools = True
        return ids

    def template(self, prompt: Prompt, messages: Messages, **end: bool) -> str:
        """The text of `messages`, which ends as `chat_text` says.

        Raises `DataError` naming `prompt` where the chat template fails.
        """
        try:
            return chat_text(self.tokenizer, messages, prompt.tools, prompt.chat_template_kwargs, **end)
        except DataError as error:
            raise DataError(f"The prompt {prompt.prompt_id!r}: {error}") from error
