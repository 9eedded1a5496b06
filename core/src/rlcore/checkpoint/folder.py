"""Checkpoint folders that are complete or absent, with a checksum of each file."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from rlcore.api.errors import CheckpointError
from rlcore.api.types import parse_json
from rlcore.checkpoint.disk import UNFINISHED, remove_folder, writing

FORMAT_VERSION = 1
"""The version of the folder's layout. A newer one is refused."""

COMPLETE_MARKER = "complete.json"
"""Written last: a folder without it was never finished."""

_FILES = "files"
"""Key of the marker: the size and the checksum of each file, by its path in the folder."""
_CHECKSUM = "xxh3_128"
"""Key of the marker: the checksum of the rest of it."""
_THREADS = 4


@contextmanager
def write_atomically(
    final: Path, info: Mapping[str, Any] | None = None, *, marked: bool = True
) -> Iterator[Path]:
    """A temporary folder beside `final` that becomes `final` when the block ends without an error.

    Before the rename, the files are on disk and their checksums are in the marker. After an error nothing is
    left, and an older `final` is untouched. An error of the file system becomes a CheckpointError. `info`:
    further JSON values for the marker. `marked`: False writes no marker, for a directory that other programs
    read.
    """
    temporary = final.with_name(f"{final.name}{UNFINISHED}")
    try:
        with writing(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            remove_folder(temporary)
            temporary.mkdir()
            yield temporary
            _finish(temporary, final, info or {} if marked else None)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


class NewerFormatError(CheckpointError):
    """The checkpoint is of a format that this rlcore does not know."""


def checkpoints(root: Path) -> list[Path]:
    """The complete checkpoints `root/<step>`, oldest first."""
    return [path for path in _numbered(root) if (path / COMPLETE_MARKER).is_file()]


def _numbered(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def newest_complete(root: Path) -> Path | None:
    """The complete checkpoint with the highest step, or None."""
    folders = checkpoints(root)
    return folders[-1] if folders else None


def newest_intact(root: Path) -> tuple[Path | None, list[CheckpointError]]:
    """The newest checkpoint whose files are all as they were written, and the errors of the damaged newer
    ones.

    Raises `NewerFormatError` where a checkpoint needs a newer rlcore: it is not damaged, so it must not be
    passed over.
    """
    errors: list[CheckpointError] = []
    for folder in reversed(_numbered(root)):
        try:
            check_files(folder)
        except NewerFormatError:
            raise
        except CheckpointError as error:
            errors.append(error)
        else:
            return folder, errors
    return None, errors


def check_files(folder: Path) -> None:
    """CheckpointError, with the name of the file, where one has changed, is missing, or should not be there.

    Takes as long as reading all files.
    """
    expected = read_marker(folder)[_FILES]
    for name in sorted({*expected, *_names(folder)}):
        if name not in expected:
            raise CheckpointError(f"{folder / name} is not a file of that checkpoint; remove it.")
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is missing.")
    try:
        digests = _digests(folder, list(expected))
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror or error}.") from error
    for name, digest in digests.items():
        if digest != expected[name]:
            raise CheckpointError(f"{folder / name} is damaged: its {_difference(digest, expected[name])}.")


def read_marker(folder: Path) -> dict[str, Any]:
    """The marker of a complete folder; CheckpointError where it is unfinished, damaged or of a newer format.

    Only a marker whose checksum is right can be of a newer format: any other is damaged.
    """
    file = folder / COMPLETE_MARKER
    try:
        text = file.read_bytes().decode()
        marker = parse_json(text)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is no complete checkpoint: it has no {COMPLETE_MARKER}.") from None
    except ValueError as error:
        raise CheckpointError(f"{file} is no JSON: {error}.") from None
    if not isinstance(marker, dict) or _marker_text(marker) != text:
        raise CheckpointError(f"{file} is damaged: its checksum is another one than when it was written.")
    if marker["format_version"] > FORMAT_VERSION:
        raise NewerFormatError(
            f"{folder} has checkpoint format {marker['format_version']}, but this rlcore reads up to "
            f"{FORMAT_VERSION}; use the version that wrote it."
        )
    return {key: value for key, value in marker.items() if key != _CHECKSUM}


def _marker_text(marker: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in marker.items() if key != _CHECKSUM}
    digest = xxhash.xxh3_128_hexdigest(json.dumps(rest).encode())
    return json.dumps({**rest, _CHECKSUM: digest}, indent=1) + "\n"


def prune(root: Path, keep: int, *, step: int) -> None:
    """Remove all but the newest `keep` complete checkpoints up to `step`, and the leftovers of interrupted
    writes.

    Checkpoints beyond `step` do not count: a resumed run has passed over them because they are damaged.
    """
    folders = [path for path in checkpoints(root) if int(path.name) <= step]
    for path in folders[: max(0, len(folders) - keep)]:
        # the marker first: a removal that is interrupted leaves nothing that looks complete
        (path / COMPLETE_MARKER).unlink()
        remove_folder(path)
    if root.is_dir():
        for path in root.glob(f"*{UNFINISHED}"):
            remove_folder(path)


def _names(folder: Path) -> list[str]:
    """Every file but the marker, by its path in the folder."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return [name for name in names if name != COMPLETE_MARKER]


def _digests(folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    from concurrent.futures import ThreadPoolExecutor  # no short command needs it

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(names, pool.map(_digest, [folder / name for name in names]), strict=True))


def _digest(path: Path) -> dict[str, Any]:
    # Without a buffer, which would copy each of these large pieces once more.
    with path.open("rb", buffering=0) as file:
        digest = hashlib.file_digest(file, xxhash.xxh3_128)
        return {"bytes": file.tell(), "xxh3_128": digest.hexdigest()}


def _difference(digest: Mapping[str, Any], expected: Any) -> str:
    if not isinstance(expected, dict) or digest["bytes"] == expected.get("bytes"):
        return "checksum is another one than when it was written"
    return f"size is {digest['bytes']} bytes, and was {expected.get('bytes')} when it was written"


def _finish(temporary: Path, final: Path, info: Mapping[str, Any] | None) -> None:
    # The order matters: contents, then the marker with their checksums, then the rename. Each is on the disk
    # before the next, so a power cut leaves a folder that is whole, or one without a marker.
    for path in temporary.rglob("*"):
        _sync(path)
    if info is not None:
        marker = temporary / COMPLETE_MARKER
        files = _digests(temporary, sorted(_names(temporary)))
        text = _marker_text({"format_version": FORMAT_VERSION, **info, _FILES: files})
        marker.write_text(text, encoding="utf-8")
        _sync(marker)
    _sync(temporary)
    remove_folder(final)  # a rename replaces no folder that has files
    temporary.rename(final)
    _sync(final.parent)  # the rename itself is an entry of the parent


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
