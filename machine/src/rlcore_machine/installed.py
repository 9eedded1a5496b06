"""What is installed here: versions of distributions, where they came from, and hashes of their code."""

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Distribution → version. What is vendored, or in a source tree alone, is left out."""
    found = {}
    for name in distributions:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def url(name: str) -> str | None:
    """Where pip took the distribution from, with the commit, if that was no index."""
    try:
        text = distribution(name).read_text("direct_url.json")  # PEP 610: pip takes secrets out
    except (PackageNotFoundError, ValueError):  # of a source tree, or a file
        return None
    if not text:
        return None
    origin: Any = json.loads(text)
    commit = origin.get("vcs_info", {}).get("commit_id")
    return f"{origin.get('url')}@{commit}" if commit else str(origin.get("url"))


def between(base: str, distributions: Iterable[str]) -> set[str]:
    """What these require that requires `base` itself, and what that requires in turn: names as pip's."""
    found: set[str] = set()
    left = set(distributions)
    required = functools.cache(_required)  # most ask for the same ones
    while left:
        new = {name for name in required(left.pop()) - found if base in required(name)}
        found |= new
        left |= new
    return found


def code(modules: Iterable[str]) -> dict[str, str]:
    """Package → SHA-256 of its Python files, of the outermost package of each module that is no namespace.

    What Python does not import from a file of its path is left out. Nothing but namespaces is imported.
    """
    return dict(sorted(_hashes(modules)))


def _required(name: str) -> set[str]:
    try:
        wanted = [Requirement(text) for text in distribution(name).requires or ()]
    except (PackageNotFoundError, ValueError):  # of a source tree, or a file
        return set()
    without_extras = {"extra": ""}
    return {
        canonicalize_name(requirement.name)
        for requirement in wanted
        if requirement.marker is None or requirement.marker.evaluate(without_extras)
    }


def _hashes(modules: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name, origin, is_package in {outermost for module in modules if (outermost := _outermost(module))}:
        files = sorted(origin.parent.rglob("*.py")) if is_package else [origin]
        hashed = hashlib.sha256()
        for file in filter(Path.is_file, files):  # an editor's lock is a link to nowhere
            content = file.read_bytes()
            # Names and lengths too: otherwise code could move from one file into the next unseen.
            hashed.update(f"{file.relative_to(origin.parent).as_posix()}\0{len(content)}\0".encode())
            hashed.update(content)
        yield name, hashed.hexdigest()


def _outermost(module: str) -> tuple[str, Path, bool] | None:
    """The outermost package of `module` that is no namespace, or the module itself; its file; which of them.

    None for what is compiled in, in an archive, or not there.
    """
    pieces = module.split(".")
    for count in range(1, len(pieces) + 1):
        try:
            spec = find_spec(".".join(pieces[:count]))
        except (ImportError, ValueError):
            return None
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            return spec.name, Path(spec.origin), spec.submodule_search_locations is not None
    return None
