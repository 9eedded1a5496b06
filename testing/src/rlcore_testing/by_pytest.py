"""Runs a suite that needs pytest, for its fixtures, on an installed part."""

from __future__ import annotations

import importlib.util
import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlcore.api.errors import MissingPackageError, PluginError
from rlcore_testing.conformance import PREFIX, Finding, Outcome, Subject

NEEDED = {"pytest": "pytest", "pytest_asyncio": "pytest-asyncio"}
"""Module → its distribution."""
SETTINGS = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
TEST = """import pickle
from rlcore.api.part import load

TestPart = load({name!r}, "the suite").of(pickle.loads({subject!r}))
"""


def require_pytest(kind: str) -> None:
    """Raises `MissingPackageError` where it is not installed."""
    missing = [dist for module, dist in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise MissingPackageError(
            f"A part of kind {kind} is checked by {' and '.join(missing)}, which is not installed; "
            f"pip install {' '.join(missing)}."
        )


def findings_by_pytest(name: str, subject: Subject) -> Iterator[Finding]:
    """What pytest finds by the suite `name` ("package.module:Class"), which `of` makes of `subject`."""
    import pytest

    record = _Record()
    with tempfile.TemporaryDirectory() as path:
        settings, file = Path(path) / "pytest.ini", Path(path) / "test_part.py"
        settings.write_text(SETTINGS)
        kept = pickle.dumps(replace(subject, registry=None, context=None))
        file.write_text(TEST.format(name=name, subject=kept))
        quiet = ["-p", "no:terminal", "-p", "no:cacheprovider", "--import-mode=importlib"]
        pytest.main([str(file), "-c", str(settings), f"--rootdir={path}", *quiet], plugins=[record])
    if record.broken:
        raise PluginError(f"The suite {name} cannot be made of the part: {record.broken}.")
    yield from record.findings


class _Record:
    """A plugin of pytest: what each test did."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.broken = ""

    def pytest_collectreport(self, report: Any) -> None:
        """The suite cannot be made."""
        if report.failed:
            self.broken = _last_line(report)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test has run, or its fixtures have failed."""
        if report.when != "call" and report.passed:
            return
        outcomes = {"passed": Outcome.HOLDS, "failed": Outcome.FAILS, "skipped": Outcome.SKIPPED}
        test, bracket, parameter = report.nodeid.rpartition("::")[2].partition("[")
        name = test.removeprefix(PREFIX).replace("_", " ")
        self.findings.append(
            Finding(
                name=f"{name}, {parameter.removesuffix(']')}" if bracket else name,
                outcome=outcomes[report.outcome],
                reason=_reason(report),
            )
        )


def _reason(report: Any) -> str:
    if report.skipped:
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return " ".join(str(text).partition("\n\n")[0].split()) if report.failed else ""


def _last_line(report: Any) -> str:
    lines = [line for line in report.longreprtext.splitlines() if line.strip()]
    return lines[-1].removeprefix("E").strip() if lines else "no reason is known"
