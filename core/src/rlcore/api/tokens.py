"""The tokenizer of a model, and text to token ids."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from rlcore.api.errors import MissingPackageError, ModelError, first_line
from rlcore.api.types import Json

CHECKED_AHEAD = 10_000
"""Prompts of a set that are looked at before a run starts; a later one that does not fit is left out."""

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
        kind = "" if type(error) is Exception else f"{type(error).__name__}: "
        raise ModelError(f"{path}: the tokenizer cannot be loaded ({kind}{first_line(error)}).") from error
    return cast(Tokenizer, tokenizer)


def template_text(tokenizer: Tokenizer) -> str | None:
    """The source of the tokenizer's chat template, if it has one."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        return template.get("tool_use") or template.get("default")
    return template


def text_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Ids of `text`, without special tokens of its own.

    Those of `tokenizer.encode`, four times as fast where it is one of Hugging Face's fast ones, and without
    holding Python's lock: a text of megabytes holds up no event loop beside it.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tuple(tokenizer.encode(text, add_special_tokens=False))
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
    return tuple(encoding.ids)
