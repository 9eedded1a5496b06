"""Plugin files: read from `--plugin`, and kept in the run's folder."""

import re
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType

from rlcore.api.errors import PluginError
from rlcore.api.plugin_file import PluginFile

_PLACE = re.compile(rb"\n\n(\w+)\.__code__ = \1\.__code__\.replace\(co_filename=.+, co_firstlineno=\d+\)\n\Z")
"""What `place_line` adds. It is no part of the content: the user's file may move, and change elsewhere."""


def place_line(function: FunctionType) -> str:
    """A line after a function's source with which its errors name the file that the user wrote."""
    name, code = function.__name__, function.__code__
    place = f"co_filename={code.co_filename!r}, co_firstlineno={code.co_firstlineno}"
    return f"\n\n{name}.__code__ = {name}.__code__.replace({place})\n"


def read(path: Path) -> PluginFile:
    """The plugin file at `path`. Raises `PluginError` where it cannot be read."""
    import hashlib

    try:
        content = path.read_bytes()
    except OSError as error:
        raise PluginError(f"{path}: {error.strerror or error}; expected a Python file.") from error
    if path.suffix != ".py":
        raise PluginError(f"{path}: expected a Python file, whose name ends in .py.")
    where = str(path.resolve())
    hashed = hashlib.sha256(_PLACE.sub(b"", content))
    return PluginFile(name=path.name, path=where, content=content, sha256=hashed.hexdigest())


def read_all(paths: Iterable[Path]) -> tuple[PluginFile, ...]:
    """The files at `paths`, without duplicates.

    Raises `PluginError` where two files have the same name and different content: a run identifies them by
    name.
    """
    files: dict[str, PluginFile] = {}
    for path in paths:
        file = read(path)
        first = files.setdefault(file.name, file)
        if first.sha256 != file.sha256:
            raise PluginError(f"{first.path} and {file.path} have one name and differ; rename one.")
    return tuple(files.values())


def write_all(files: Iterable[PluginFile], folder: Path) -> None:
    """Write each file into `folder` under its name. A file appears whole or not at all. CheckpointError."""
    from rlcore.checkpoint.disk import replace_file

    for file in files:
        with replace_file(folder / file.name) as draft:
            draft.write_bytes(file.content)
