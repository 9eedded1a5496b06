"""The plugins that are installed, as their metadata tell: nothing is imported."""

import re
from collections.abc import Iterable, Iterator
from functools import cache

import rlcore
from rlcore_machine import EntryPoint, entry_points

GROUP = "rlcore"
UNKNOWN = "unknown"
"""The distribution of a plugin that no metadata know."""

REQUIREMENT = re.compile(r"rlcore(?![\w.-])\s*\(?([^\[;)]*)\)?\s*")
"""A requirement of rlcore in a plugin's metadata.

One with a marker (`; extra == …`) does not match: it is optional.
"""


class Installed(EntryPoint):
    """A plugin: its name, its module (`value`), and the distribution that it is of."""

    @property
    def names(self) -> set[str]:
        """By which switches know it."""
        return {self.name, self.dist}

    @property
    def unmet(self) -> str | None:
        """The range of rlcore that it asks for, if this rlcore is outside it."""
        specifier = asked_range(self.requires)
        return None if specifier is None or _is_met(specifier) else specifier


def installed() -> list[Installed]:
    """By name: the order in which plugins were installed must not decide anything."""
    found = [
        Installed(**{**vars(point), "dist": point.dist or UNKNOWN, "version": point.version or "0"})
        for point in entry_points(GROUP)
    ]
    return sorted(found, key=lambda one: (one.name, one.dist))


@cache
def _is_met(specifier: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(specifier).contains(rlcore.__version__, prereleases=True)
    except InvalidSpecifier:
        return False


def asked_range(requires: Iterable[str]) -> str | None:
    """The range of rlcore that is among these requirements; None: any."""
    matches: Iterator[re.Match[str] | None] = map(REQUIREMENT.fullmatch, requires)
    return next((match[1].strip() for match in matches if match is not None), None)
