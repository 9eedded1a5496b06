"""How the packages of this environment differ from a lock: a file of lines `NAME==VERSION`."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from rlcore import ConfigError, Diagnosis

MOST_SHOWN = 12


def requirements(lock: Path) -> list[Requirement]:
    """Those of this platform. Raises `ConfigError` where a line is none, or allows several versions."""
    found = []
    for number, line in enumerate(lock.read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            one = Requirement(text)
        except InvalidRequirement:
            one = None
        if one is None or [specifier.operator for specifier in one.specifier] != ["=="]:
            raise ConfigError(f"--lock {lock}: line {number} is {text!r}, expected NAME==VERSION.")
        if one.marker is None or one.marker.evaluate():
            found.append(one)
    return found


def differences(lock: Path, wanted: list[Requirement]) -> Iterator[Diagnosis]:
    """One line for the packages that are missing, one for those of another version."""
    missing, others = list[str](), list[str]()
    for one in wanted:
        try:
            installed = version(one.name)
        except PackageNotFoundError:
            missing.append(str(one))
            continue
        if not one.specifier.contains(installed, prereleases=True):
            others.append(f"{one.name} is {installed}, not {str(one.specifier)[2:]}")
    remedy = f"Install it: `pip install --no-deps -r {lock}`."
    if missing:
        yield Diagnosis(what="lock, missing", found=_shown(missing, " "), remedy=remedy, stops=False)
    if others:
        yield Diagnosis(what="lock, versions", found=_shown(others, "; "), remedy=remedy, stops=False)
    if not missing and not others:
        yield Diagnosis(what="lock", found=f"all {len(wanted)} packages have the versions of {lock}")


def _shown(items: list[str], between: str) -> str:
    more = f" and {len(items) - MOST_SHOWN} more" if len(items) > MOST_SHOWN else ""
    return between.join(items[:MOST_SHOWN]) + more
