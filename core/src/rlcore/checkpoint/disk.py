"""Write files whole or not at all, and say in one sentence why one could not be written."""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlcore.api.errors import CheckpointError

UNFINISHED = ".partial"
"""The ending of files and folders that are not finished."""


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that becomes `path` when the block ends without an error.

    Makes the folder if needed. After an error nothing is left, and an older file is untouched. An error of
    the file system becomes a CheckpointError.
    """
    draft = path.with_name(f"{path.name}{UNFINISHED}")  # beside it: a rename is atomic within a file system
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield draft
            draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A CheckpointError of one sentence where `path` cannot be written."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise CheckpointError(disk_sentence(path, error)) from error
    except SafetensorError as error:  # it has the system's number in its text
        number = re.search(r"os error (\d+)", str(error))
        cause = OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(error)
        raise CheckpointError(disk_sentence(path, cause)) from error


def remove_folder(path: Path) -> None:
    """Remove a folder, if it is there."""
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


def disk_sentence(path: Path, error: OSError) -> str:
    """The sentence for a file-system error while `path` was written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{path} could not be written: the disk is full; free space, or name another folder."
    return f"{path} could not be written: {error.strerror or error}."
