"""Plugins given as a file: they travel by content, under a module name that every process agrees on."""

import hashlib
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from rlcore.errors import PluginError


@dataclass(frozen=True, kw_only=True)
class PluginFile:
    """One `--plugin file.py`. `name`: the file's name; `path`: where it was read; `content`: its bytes."""

    name: str
    path: str
    content: bytes
    sha256: str

    @property
    def module(self) -> str:
        """The module's name: the same wherever the content is the same.

        A plugin file names its own parts with `factory=f"{__name__}:MyReward"`.
        """
        stem = re.sub(r"\W", "_", Path(self.name).stem)
        return f"rlcore_file_{stem}_{self.sha256[:12]}"


def read(path: Path) -> PluginFile:
    """The file's content. Raises `PluginError` where it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PluginError(f"--plugin {path}: {error.strerror or error}; expected a Python file.") from error
    where = str(path.resolve())
    return PluginFile(name=path.name, path=where, content=content, sha256=hashlib.sha256(content).hexdigest())


def read_all(paths: Iterable[Path]) -> tuple[PluginFile, ...]:
    """The files at `paths`; of two with one name and one content the first.

    Raises `PluginError` where two of one name differ: a run knows a plugin file by its name.
    """
    found: dict[str, PluginFile] = {}
    for path in paths:
        file = read(path)
        known = found.setdefault(file.name, file)
        if known.sha256 != file.sha256:
            raise PluginError(f"--plugin: {known.path} and {file.path} have one name and differ; rename one.")
    return tuple(found.values())


def write_all(files: Iterable[PluginFile], folder: Path) -> None:
    """Each file into `folder`, by its name: whole or not at all."""
    for file in files:
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"{file.name}.partial"
        draft.write_bytes(file.content)
        draft.replace(folder / file.name)


def import_content(file: PluginFile) -> ModuleType:
    """The module of `file`, executed from its content once in each process."""
    if file.module in sys.modules:
        return sys.modules[file.module]
    module = ModuleType(file.module)
    module.__file__ = file.path
    sys.modules[file.module] = module
    try:
        exec(compile(file.content, file.path, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[file.module]
        raise
    return module


def install(files: Iterable[PluginFile]) -> None:
    """Import every file in this process, so that its factories resolve and its configs unpickle.

    A worker calls this before it unpickles anything that a plugin file defined.
    """
    for file in files:
        import_content(file)
