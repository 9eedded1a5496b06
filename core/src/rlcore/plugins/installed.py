"""The plugins that are installed, as their metadata tell: nothing is imported."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from packaging.specifiers import InvalidSpecifier, SpecifierSet

import rlcore

GROUP = "rlcore"
UNKNOWN = "unknown"
"""The distribution of a plugin that no metadata know."""

REQUIREMENT = re.compile(r"rlcore(?![\w.-])\s*\(?([^\[;)]*)\)?\s*")
"""A requirement of rlcore in a plugin's metadata.

One with a marker (`; extra == …`) does not match: it is optional.
"""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An entry point, the distribution that it is of, and the range of rlcore that this asks for."""

    point: EntryPoint
    dist: str = UNKNOWN
    version: str = "0"
    asked: str | None = None

    @property
    def names(self) -> set[str]:
        """By which switches know it."""
        return {self.point.name, self.dist}

    @property
    def unmet(self) -> str | None:
        """The range of rlcore that it asks for, if this rlcore is outside it."""
        if self.asked is None:
            return None
        try:
            is_met = SpecifierSet(self.asked).contains(rlcore.__version__, prereleases=True)
        except InvalidSpecifier:
            is_met = False
        return None if is_met else self.asked


def installed() -> list[Installed]:
    """By name: the order in which plugins were installed must not decide anything."""
    return sorted(map(_read, entry_points(group=GROUP)), key=lambda one: (one.point.name, one.dist))


def _read(point: EntryPoint) -> Installed:
    dist = point.dist
    if dist is None or not (dist.read_text("METADATA") or dist.read_text("PKG-INFO")):
        return Installed(point=point)  # what is left of one that was removed may have no metadata
    # Once: each property of a distribution reads and parses its whole file.
    metadata = dist.metadata
    requires = metadata.get_all("Requires-Dist") or ()
    return Installed(
        point=point, dist=metadata["Name"], version=metadata["Version"], asked=asked_range(requires)
    )


def asked_range(requires: Iterable[str]) -> str | None:
    """The range of rlcore that is among these requirements; None: any."""
    matches: Iterator[re.Match[str] | None] = map(REQUIREMENT.fullmatch, requires)
    return next((match[1].strip() for match in matches if match is not None), None)
