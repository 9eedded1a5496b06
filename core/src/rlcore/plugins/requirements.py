"""Which rlcore a plugin's distribution asks for."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

RLCORE = "rlcore"


def range_of(dist: str) -> SpecifierSet | None:
    """The versions of rlcore that the distribution requires; None: it names none, or is no distribution."""
    try:
        required = [Requirement(text) for text in requires(dist) or ()]
    except PackageNotFoundError:
        return None
    found = [one.specifier for one in required if canonicalize_name(one.name) == RLCORE]
    return found[0] if found else None
