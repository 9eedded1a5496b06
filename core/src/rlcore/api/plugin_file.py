"""A plugin given as a file: it travels by content, under a module name that every process agrees on."""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


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


def import_plugin_file(file: PluginFile) -> ModuleType:
    """The module of `file`, executed from its content once in each process."""
    if file.module in sys.modules:
        return sys.modules[file.module]
    module = ModuleType(file.module)
    module.__file__ = file.path
    sys.modules[file.module] = module  # before it runs: dataclasses look their module up there
    try:
        exec(compile(file.content, file.path, "exec"), module.__dict__)
    except BaseException:
        # Or the next import would take the half that has run for the whole module.
        del sys.modules[file.module]
        raise
    return module


def install_plugin_files(files: Iterable[PluginFile]) -> None:
    """Import every file in this process, so that its factories resolve and its configs unpickle.

    A worker calls this before it unpickles anything that a plugin file defined.
    """
    for file in files:
        import_plugin_file(file)
