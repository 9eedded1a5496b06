"""The licenses of rlcore's members and of the packages that they ask for.

Everything is read from the metadata of what is installed here (`importlib.metadata`).
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hatch_build import members  # noqa: E402 - it lies in the root

ALLOWED = frozenset(
    {
        *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause"),
        *("BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Zlib"),
        "MPL-2.0",  # changes to its own files are shared; whoever only uses it owes nothing
    }
)
"""Licenses that let a package be used beside an Apache-2.0 one, whatever the user does with it."""
SPELLINGS = {
    r"apache.*2\.0.*|apache software license": "Apache-2.0",
    r"(the )?mit( license)?": "MIT",
    r"3-clause bsd license|new bsd license": "BSD-3-Clause",
    r"bsd( license)?": "BSD",
    r"isc license.*": "ISC",
    r"mozilla public license 2\.0.*": "MPL-2.0",
    r"python software foundation license": "PSF-2.0",
}
"""How metadata from before SPDX say it. `BSD`: which one, they do not say."""
OWN_TERMS = ("nvidia-", "cuda-")
"""The CUDA build of torch brings these."""
READ = {"protobuf-py-ext": "Apache-2.0", "zss": "BSD-3-Clause"}
"""Of packages whose metadata say nothing: what their license file is, or that of their repository."""


def own() -> str:
    """The license of every member."""
    [name] = {_project(member)["license"] for member in members(ROOT)}
    return str(name)


def rows() -> tuple[list[tuple[str, str, str]], list[str]]:
    """Package, license, extras that alone need it; and the packages that are not installed."""
    found, absent = [], []
    for name, extras in sorted(direct().items()):
        try:
            found.append((name, license_of(distribution(name)), ", ".join(extras)))
        except PackageNotFoundError:
            absent.append(f"{name} ({', '.join(extras)})")
    return found, absent


def direct() -> dict[str, list[str]]:
    """Each package that members ask for → their extras that do so, where nothing else does."""
    always: set[str] = set()
    extras: dict[str, list[str]] = {}
    for project in map(_project, members(ROOT)):
        always |= {_name(one) for one in project.get("dependencies", ())}
        for extra, wanted in project.get("optional-dependencies", {}).items():
            for one in wanted:
                extras.setdefault(_name(one), []).append(f"{project['name']}[{extra}]")
    found = {name: [] if name in always else extras[name] for name in always | extras.keys()}
    return {name: only for name, only in found.items() if not name.startswith("rlcore")}


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def needed() -> Iterator[Distribution]:
    """What is installed of `direct`, and of all that these need in turn."""
    waiting = [Requirement(name) for name in direct()]
    seen = set()
    while waiting:
        asked = waiting.pop()
        key = canonicalize_name(asked.name), frozenset(asked.extras)
        if key in seen or key[0].startswith(OWN_TERMS):
            continue
        seen.add(key)
        try:
            found = distribution(asked.name)
        except PackageNotFoundError:
            continue
        yield found
        for line in found.requires or ():
            one = Requirement(line)
            extras = [{"extra": extra} for extra in ("", *asked.extras)]
            if one.marker is None or any(map(one.marker.evaluate, extras)):
                waiting.append(one)


def license_of(found: Distribution) -> str:
    """An SPDX expression where the metadata have one, else what they say, spelled alike; or `unknown`."""
    metadata = found.metadata
    if "License-Expression" in metadata:
        return str(canonicalize_license_expression(metadata["License-Expression"]))
    classifiers = [str(one) for one in metadata.get_all("Classifier", ())]
    told = [metadata["License"]] if "License" in metadata else []
    told += [one.rpartition(" :: ")[2] for one in classifiers if one.startswith("License ::")]
    names = {name for one in told if (name := _spelled(one))}
    if any(name.startswith("BSD-") for name in names):
        names.discard("BSD")
    return " AND ".join(sorted(names)) or READ.get(canonicalize_name(found.name), "unknown")


def misfits(expression: str) -> list[str]:
    """The licenses of an expression that are not `ALLOWED`."""
    names = re.split(r"\s+(?:AND|OR)\s+", re.sub(r"[()]", "", expression))
    return [name for name in names if name not in ALLOWED]


def _spelled(told: str) -> str | None:
    """None for a whole text, or what nobody knows."""
    for pattern, name in SPELLINGS.items():
        if re.fullmatch(pattern, told.strip(), re.IGNORECASE):
            return name
    try:
        return str(canonicalize_license_expression(told)) if told.strip() else None
    except InvalidLicenseExpression:
        return None


def _project(member: Path) -> dict[str, Any]:
    found: dict[str, Any]
    found = tomllib.loads((member / "pyproject.toml").read_text())["project"]
    return found
