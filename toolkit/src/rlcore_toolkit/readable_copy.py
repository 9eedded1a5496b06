"""A model directory as transformers reads it, without the code that came with the model."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlcore import ModelError

CODE_FIELD = "auto_map"
"""In config.json and tokenizer_config.json: the classes of the code that came with the model."""


def readable_copy(
    path: str | Path, changes: Mapping[str, Mapping[str, Any]], cache: Path | None = None
) -> Path:
    """A directory with links to the files of `path`, without Python files, in `cache` (None: the user's).

    `changes`: a JSON file's name → the fields that differ in the copy, whose file has no `auto_map`. Each
    call brings the copy up to date. Every machine that reads the model must see it, as it must see the
    Hugging Face cache. ModelError where it cannot be written.
    """
    source = Path(path).resolve()
    mark = hashlib.sha256(str(source).encode()).hexdigest()[:12]
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    copy = cache / "rlcore" / "models" / f"{source.name}-{mark}"
    with _writing(copy):
        copy.mkdir(parents=True, exist_ok=True)
        for link in copy.iterdir():
            if link.is_symlink() and not link.exists():
                link.unlink()
        for file in source.iterdir():
            if file.name not in changes and file.suffix != ".py":
                _link(copy / file.name, file)
        for name, fields in changes.items():
            table = {**_table(source / name), **fields}
            table.pop(CODE_FIELD, None)
            write_file(copy / name, json.dumps(table, indent=2, ensure_ascii=False))
    return copy


@contextmanager
def _writing(copy: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"{copy}, a copy of the model that needs no code of its own, cannot be written "
            f"({error.strerror or error}); name a folder that can in XDG_CACHE_HOME."
        ) from error


def _table(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise ModelError(f"{file} is broken JSON ({error}).") from error
    if not isinstance(found, dict):
        raise ModelError(f"{file} holds no table.")
    return found


def write_file(path: Path, text: str) -> None:
    """Write a file of a copy, if it would change; nobody sees half of it. ModelError where it cannot."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with _writing(path.parent):
        if not path.is_file() or path.read_text() != text:
            draft.write_text(text)
            draft.replace(path)


def _link(link: Path, file: Path) -> None:
    if not link.is_symlink() or link.readlink() != file:
        draft = link.with_name(f"{link.name}.{os.getpid()}")
        draft.symlink_to(file)
        draft.replace(link)
