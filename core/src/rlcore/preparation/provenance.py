"""The versions and data behind a run: `provenance.jsonl`, with a line for each start of the run."""

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from rlcore.api.errors import CheckpointError
from rlcore.api.sources import FileBackedSource
from rlcore.api.types import parse_json
from rlcore.checkpoint.disk import replace_file
from rlcore.compose.resolved import Resolved
from rlcore.data.urls import open_file
from rlcore.plugins.registry import PluginInfo, is_file
from rlcore_machine import installed

FILE = "provenance.jsonl"
OWN, BELOW = "rlcore", "rlcore-machine"
"""The distribution that this package comes in, and the one that it stands on."""

LIBRARIES = (OWN, BELOW, "tokenizers", "torch", "transformers")
"""Distributions beside those of plugins, trainer and cluster whose version may change a run's numbers."""

HASHED_BYTES = 2**20
"""How much of a data file's beginning, and of its end, is hashed."""

_CHANGED = "has changed since the run was started; bring the old file back, or start a new run"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Everything by its name.

    `libraries`: version. `plugins`: those that are used, each with its distribution, its version (of a plugin
    file `sha256:…`), its origin (the module, or the path of the file), and its url where pip knows one.
    `code`: SHA-256 of a package's Python files, for rlcore and what it stands on, the packages of those
    plugins, what makes rewards of functions, and the libraries that they share and that stand on rlcore as
    they do. `data`: fingerprint of the files with the prompts to train on.
    """

    libraries: Mapping[str, str]
    plugins: Mapping[str, Mapping[str, str]]
    code: Mapping[str, str]
    data: Mapping[str, str]

    @staticmethod
    def of(resolved: Resolved) -> "Provenance":
        """Raises `DataError` where a file of the data cannot be read."""
        packaged = [info for info in resolved.plugins if not info.is_file]
        modules = {OWN, BELOW.replace("-", "_"), *(info.origin for info in packaged)}
        made_by = [name for part in resolved.parts() for name in (part.factory, part.adapter) if name]
        modules |= {name.partition(":")[0] for name in made_by}
        shared = installed.between(OWN, [info.dist for info in packaged])
        modules |= {name.replace("-", "_") for name in shared}
        source = resolved.source.build()
        files = source.files() if isinstance(source, FileBackedSource) else ()
        packages = (*resolved.trainer.config.libraries, *resolved.cluster.config.libraries)
        return Provenance(
            libraries=installed.versions(sorted({*LIBRARIES, *packages})),
            plugins={info.name: _described(info) for info in resolved.plugins},
            code=installed.code(modules),
            data={path: fingerprint(path) for path in files},
        )

    @staticmethod
    def of_start(folder: Path, step: int) -> "Provenance | None":
        """The record of the start that made the checkpoint of `step` in `folder`; None: there is no file.

        Raises `CheckpointError` where it cannot be read.
        """
        path = folder / FILE
        try:
            starts = [parse_json(line) for line in _whole_lines(path)]
            # A run that was resumed twice has several starts; the last one before the step wrote it.
            before = [start for start in starts if start["step"] < step]
            return _ADAPTER.validate_python((before or starts)[-1]) if starts else None
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError):
            raise CheckpointError(
                f"{path}: damaged; without it the run goes on, and compares nothing."
            ) from None

    def append(self, folder: Path, step: int) -> None:
        """Add the line of a start after `step` steps to the run in `folder`; the file is replaced whole."""
        path = folder / FILE
        lines = _whole_lines(path) if path.exists() else []
        added = json.dumps({"step": step, **asdict(self)}).encode()
        with replace_file(path) as draft:
            draft.write_bytes(b"".join(line + b"\n" for line in (*lines, added)))

    def changes(self, then: "Provenance") -> str | None:
        """A sentence about changes since `then` that may change numbers; None: there are none."""
        now, before = self._by_version(), then._by_version()
        changes = [
            f"{name} {before[name]}, now {now.get(name, 'gone')}"
            for name in sorted(before)
            if before[name] != now.get(name)
        ]
        changes += [
            f"the code of {package}"
            for package, code in sorted(then.code.items())
            if self.code.get(package, code) != code
        ]
        if not changes:
            return None
        return (
            f"Changed since the checkpoint was made: {', '.join(changes)}. The run's numbers may differ from "
            "those of an unbroken one."
        )

    def _by_version(self) -> dict[str, str]:
        return {**self.libraries, **{f"plugin {key}": info["version"] for key, info in self.plugins.items()}}


_ADAPTER = TypeAdapter(Provenance)


def compared(now: Provenance, run_dir: Path, step: int) -> str | None:
    """A note if the resumed run may give other numbers than the one that made the checkpoint.

    `step`: of the checkpoint. Raises `CheckpointError` if the data or a plugin file have changed since.
    """
    then = Provenance.of_start(run_dir, step)
    if then is None:
        return f"{run_dir / FILE} is gone, so nobody knows whether data and code are what they were."
    for name, info in now.plugins.items():
        if is_file(info["version"]) and then.plugins.get(name, info)["version"] != info["version"]:
            raise CheckpointError(f"{run_dir}: the content of the plugin {name} {_CHANGED}.")
    for path, content in now.data.items():
        if then.data.get(path, content) != content:
            raise CheckpointError(f"{path}: its content {_CHANGED}.")
    return now.changes(then)


def _whole_lines(path: Path) -> list[bytes]:
    # A line without its end was cut short, by a crash or a full disk.
    finished, _, _ = path.read_bytes().rpartition(b"\n")
    return finished.splitlines()


def fingerprint(path: str) -> str:
    """`SIZE:SHA-256` of a file here or behind a URL, the hash over its first and its last `HASHED_BYTES`."""
    # Not the whole file: it may be larger than the memory, and lie behind a slow network.
    with open_file(path) as file:
        hashed = hashlib.sha256(file.read(HASHED_BYTES))
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - HASHED_BYTES))
        hashed.update(file.read(HASHED_BYTES))
    return f"{size}:{hashed.hexdigest()}"


def _described(info: PluginInfo) -> dict[str, str]:
    described = {"distribution": info.dist, "version": info.version, "origin": info.origin}
    if found := installed.url(info.dist):
        described["url"] = found
    return described
