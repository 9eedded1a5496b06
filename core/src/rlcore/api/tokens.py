"""Prompts to token ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, cast

from rlcore.api.errors import DataError, MissingPackageError, ModelError
from rlcore.api.types import Json, Prompt

CHECKED_AHEAD = 10_000
"""Prompts of a set that `PromptEncoder.check` looks at; a later one that does not fit is left out."""

MOST_BYTES = 4
"""Of a character in UTF-8, each of which may be a token."""

TOKENIZER_FILES = ("tokenizer.json", "vocab*", "*.model", "*.tiktoken")


class Tokenizer(Protocol):
    """What rlcore uses of a `transformers` tokenizer."""

    @property
    def eos_token(self) -> str | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    def __len__(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    def apply_chat_template(
        self,
        conversation: list[Mapping[str, Json]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        return_dict: bool,
        **variables: Any,
    ) -> Any:
        """`variables`: what the template may use beside the messages, such as `tools`."""
        ...


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a local Hugging Face directory; no code of that directory is run."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingPackageError(
            f"{path}: its tokenizer needs transformers, which is not installed: pip install 'rlcore[models]'."
        ) from error

    if not Path(path).is_dir():
        raise ModelError(f"{path}: no such model directory.")
    if not any(file for pattern in TOKENIZER_FILES for file in Path(path).glob(pattern)):
        # transformers makes an empty tokenizer of a directory without one
        raise ModelError(f"{path}: holds no tokenizer, expected {TOKENIZER_FILES[0]}.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:  # which tokenizer.json may set
            backend.no_truncation()
            backend.no_padding()
    except Exception as error:  # the tokenizers package raises bare Exception for a file that it cannot read
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        kind = "" if type(error) is Exception else f"{type(error).__name__}: "
        raise ModelError(f"{path}: the tokenizer cannot be loaded ({kind}{reason}).") from error
    return cast(Tokenizer, tokenizer)


def vocabulary(path: str | Path) -> dict[str, int]:
    """Token → id, of the tokenizer of a local Hugging Face directory."""
    vocabulary: dict[str, int] = cast(Any, load_tokenizer(path)).get_vocab()
    return vocabulary


_LONGEST, _CHARACTERS_A_TOKEN = 2**20, 64
"""A prompt has at most `_LONGEST` characters, and so many for each token that it may have."""


class PromptEncoder:
    """Text becomes ids without special tokens; messages go through the tokenizer's chat template."""

    def __init__(self, tokenizer: Tokenizer, max_prompt_tokens: int) -> None:
        self.tokenizer = tokenizer
        self._limit = max_prompt_tokens
        self._shows_tools = False
        self._variables: set[str] = set()

    @classmethod
    def load(cls, path: str | Path, *, max_prompt_tokens: int) -> PromptEncoder:
        """With the tokenizer of a local Hugging Face directory."""
        return cls(load_tokenizer(path), max_prompt_tokens)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of `prompt`, `checked`. A text that cannot fit is refused before it is tokenized."""
        longest = _LONGEST + _CHARACTERS_A_TOKEN * self._limit
        if isinstance(prompt.text, str) and len(prompt.text) > longest:
            raise DataError(
                f"The prompt {prompt.prompt_id!r} has {len(prompt.text)} characters;"
                f" --max-prompt-tokens allows {self._limit} tokens."
            )
        return self.checked(prompt, self._ids(prompt))

    def checked(self, prompt: Prompt, ids: tuple[int, ...]) -> tuple[int, ...]:
        """`ids`, those of `prompt`. Raises `DataError` naming it where they are too many, or none."""
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

        Text of no more bytes than tokens are allowed is passed over: tokens have at least a byte, but for
        rare normalizers, whose prompts `encode` still refuses.
        """
        for prompt in islice(prompts, CHECKED_AHEAD):
            if not isinstance(prompt.text, str) or len(prompt.text.encode()) > self._limit:
                self.encode(prompt)

    def unknown(self, prompts: Iterable[Prompt]) -> str:
        """The characters, in prompts and labels that are texts, for which the tokenizer has no token.

        Of the first `CHECKED_AHEAD` prompts. The model cannot see them, nor write them.
        """
        unk = getattr(self.tokenizer, "unk_token_id", None)
        if unk is None:
            return ""
        used: set[str] = set()
        for prompt in islice(prompts, CHECKED_AHEAD):
            used.update(*(text for text in (prompt.text, prompt.label) if isinstance(text, str)))
        return "".join(
            character
            for character in sorted(used)
            if unk in self.tokenizer.encode(character, add_special_tokens=False)
        )

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt.text, str):
            return tuple(text_ids(self.tokenizer, prompt.text))
        messages = list(prompt.text)
        for name in prompt.chat_template_kwargs.keys() - self._variables:
            if not re.search(rf"\b{re.escape(name)}\b", template_text(self.tokenizer) or ""):
                raise DataError(
                    f"The prompt {prompt.prompt_id!r} has {name!r} for the chat template, but the "
                    "tokenizer's has no such variable."
                )
            self._variables.add(name)
        if prompt.tools and not self._shows_tools:
            bare = replace(prompt, tools=())
            texts = [self.template(one, messages, generation=True, tokenize=False) for one in (prompt, bare)]
            if texts[0] == texts[1]:
                raise DataError(
                    f"The prompt {prompt.prompt_id!r} has tools, but the chat template of the tokenizer shows"
                    " none; expected a model that was made for tools."
                )
            self._shows_tools = True
        return tuple(self.template(prompt, messages, generation=True, tokenize=True))

    def template(
        self, prompt: Prompt, messages: list[Mapping[str, Json]], *, generation: bool, tokenize: bool
    ) -> Any:
        """Ids or text of `messages`. Raises `DataError` naming `prompt` where the chat template fails."""
        variables = {**prompt.chat_template_kwargs, **({"tools": list(prompt.tools)} if prompt.tools else {})}
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=generation,
                tokenize=tokenize,
                return_dict=False,
                **variables,
            )
        except Exception as error:  # a template raises jinja2's own errors, a missing one ValueError
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise DataError(
                f"The prompt {prompt.prompt_id!r} is a chat that the tokenizer cannot format: {reason}"
            ) from error


def template_text(tokenizer: Tokenizer) -> str | None:
    """The source of the tokenizer's chat template, if it has one."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        return template.get("tool_use") or template.get("default")
    return template


def text_ids(tokenizer: Tokenizer, text: str) -> Sequence[int]:
    """Ids of `text`, without special tokens of its own.

    Those of `tokenizer.encode`, four times as fast where it is one of Hugging Face's fast ones, and without
    holding Python's lock: a text of megabytes holds up no event loop beside it.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer.encode(text, add_special_tokens=False)
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
    ids: Sequence[int] = encoding.ids
    return ids


def token_spans(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[tuple[int, int]]:
    """Where the text of each token stands in the text of all: from this character, to that.

    The text is that without special tokens, which have none. Tokens that are parts of one character have all
    of them its place. Costs two decodings of a few tokens for each token.
    """
    spans: list[tuple[int, int]] = []
    begin, first, read = 0, 0, 0
    for place in range(len(token_ids)):
        before = tokenizer.decode(token_ids[first:read], skip_special_tokens=True)
        text = tokenizer.decode(token_ids[first : place + 1], skip_special_tokens=True)
        is_last = place + 1 == len(token_ids)
        if text.endswith("\ufffd") and not is_last and place - read < MOST_BYTES - 1:
            continue  # the rest of a character is to come
        end = begin + len(text) - len(before)
        spans += [(begin, end)] * (place + 1 - read)
        if end > begin:  # some tokenizers drop a space at the beginning: what is decoded begins with text
            first = read
        begin, read = end, place + 1
    return spans
