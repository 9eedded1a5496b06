"""Plugins that are sound but for one fault, and which properties of a suite find it."""

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlcore_testing.by_pytest import findings_by_pytest
from rlcore_testing.conformance import Conformance, Outcome, findings, properties, said


@dataclass(frozen=True, kw_only=True)
class Fault:
    """In `file` of a sound plugin, `old` stands once; with `new` in its place it lacks `missing`.

    `missing`: a property of the suite, as `rlcore plugins check` says it. `reason`: a part of what is said.
    """

    name: str
    file: str
    old: str
    new: str
    missing: str
    reason: str = ""


def faults(test_file: str) -> pytest.MarkDecorator:
    """The test gets each `fault` of the TOML file beside it, which has a table a fault."""
    tables = tomllib.loads(Path(test_file).with_suffix(".toml").read_text())
    found = [Fault(name=name, **table) for name, table in tables.items()]
    return pytest.mark.parametrize("fault", found, ids=list(tables))


def break_package(folder: Path, fault: Fault) -> None:
    """Put the fault into the package in `folder`."""
    file = folder / fault.file
    text = file.read_text()
    assert text.count(fault.old) == 1, f"{fault.name}: found {text.count(fault.old)} times in {fault.file}"
    file.write_text(text.replace(fault.old, fault.new))


def copy_package(source: Path, folder: Path) -> None:
    """A copy of the package `source` in the new `folder`, by the name of the folder."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in folder.rglob("*.py"):
        file.write_text(file.read_text().replace(source.name, folder.name))


def fails(suite: type[Conformance], asked: str) -> dict[str, str]:
    """Of the property `asked`, with each of its parameters: what the suite finds missing, and why."""
    left_out = {name for name in properties(suite) if said(name) != asked}
    found = list(findings_by_pytest(suite.with_values(**dict.fromkeys(left_out))))
    assert found, f"the suite has no property {asked!r}"
    return {one.name.partition(", ")[0]: one.reason for one in found if one.outcome is Outcome.FAILS}


def lacks(suite: type[Conformance], missing: str) -> None:
    """The suite finds the property `missing`, or none where it is empty."""
    found = all_fails(suite)
    assert missing in found if missing else not found, found


def all_fails(suite: type[Conformance]) -> dict[str, str]:
    """Each property that the suite finds missing, and why."""
    return {one.name: one.reason for one in findings(suite) if one.outcome is Outcome.FAILS}
