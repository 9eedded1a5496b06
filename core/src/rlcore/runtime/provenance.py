"""What a run was made with beside its settings: the content of its files, the versions that computed it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from rlcore.api.sources import FileBackedSource

if TYPE_CHECKING:
    from rlcore.compose.resolved import Resolved

LIBRARIES = ("ray", "tokenizers", "torch", "transformers")
"""Distributions beside the plugins' and the trainer's whose version may change a run's numbers."""

HASHED_BYTES = 2**20
"""How much of a file's beginning, and of its end, is hashed."""


def fingerprints(resolved: Resolved) -> dict[str, str]:
    """File → fingerprint, of the files with the prompts to train on. Raises `DataError`."""
    source = resolved.source.build()
    files = source.files() if isinstance(source, FileBackedSource) else ()
    return {path: fingerprint(path) for path in files}


def fingerprint(path: str) -> str:
    """`SIZE:SHA-256` of a file here or behind a URL, the hash over its first and its last `HASHED_BYTES`."""
    from rlcore.data.storage import opened

    with opened(path) as file:
        hashed = hashlib.sha256(file.read(HASHED_BYTES))
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - HASHED_BYTES))
        hashed.update(file.read(HASHED_BYTES))
    return f"{size}:{hashed.hexdigest()}"


def versions(resolved: Resolved) -> dict[str, str]:
    """Plugin or library → version. A plugin file's is `sha256:…`."""
    libraries = sorted((*LIBRARIES, *resolved.trainer.config.libraries))
    return {
        **dict(_versions(libraries)),
        **{f"plugin {name}": version for name, version in resolved.plugins.items()},
    }


def _versions(libraries: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in libraries:
        try:
            yield name, version(name)
        except PackageNotFoundError:  # vendored, or from a source tree
            continue


def changed(then: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """What has another version than when the run was started, as a sentence; None where nothing has."""
    names = [name for name in sorted(then) if now.get(name) != then[name]]
    if not names:
        return None
    changes = ", ".join(f"{name} {then[name]}, now {now.get(name, 'gone')}" for name in names)
    return (
        f"Other versions than before: {changes}. The run's numbers may differ from those of an unbroken one."
    )
