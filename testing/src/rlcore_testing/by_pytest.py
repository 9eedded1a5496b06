"""Runs a suite that needs pytest, for its fixtures, on an installed part."""

from __future__ import annotations

import importlib.util
import linecache
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from rlcore.api.errors import MissingPackageError, PluginError
from rlcore_testing.conformance import NOT_INSTALLED, Conformance, Finding, Outcome, meaning, said

NEEDED = {"pytest": "pytest", "pytest_asyncio": "pytest-asyncio"}
"""Module → its distribution."""
SETTINGS = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
SUITE: ContextVar[type[Conformance]] = ContextVar("SUITE")
TEST = """from rlcore_testing.by_pytest import SUITE

TestPart = SUITE.get()
"""
"""What pytest collects, in this process."""


def require_pytest(kind: str) -> None:
    """Raises `MissingPackageError` if it is not installed."""
    missing = [dist for module, dist in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise MissingPackageError(
            f"A part of kind {kind} is checked by {' and '.join(missing)}, which is not installed; "
            f"pip install {' '.join(missing)}."
        )


def findings_by_pytest(suite: type[Conformance]) -> Iterator[Finding]:
    """What pytest finds by a suite of a part. Raises `NOT_INSTALLED` where the part needs a package."""
    import pytest

    record, chosen = _Record(suite), SUITE.set(suite)
    with tempfile.TemporaryDirectory() as path:
        settings = Path(path) / "pytest.ini"
        file = Path(path) / f"test_{Path(path).name}.py"  # pytest imports no two modules of one name
        settings.write_text(SETTINGS)
        file.write_text(TEST)
        quiet = ["-p", "no:terminal", "-p", "no:cacheprovider", "--import-mode=importlib"]
        try:
            pytest.main([str(file), "-c", str(settings), f"--rootdir={path}", *quiet], plugins=[record])
        finally:
            SUITE.reset(chosen)
    if record.missing is not None:
        raise record.missing
    if record.broken:
        raise PluginError(f"{suite.__name__} cannot be asked of the part: {record.broken}.")
    yield from record.findings


class _Record:
    """A plugin of pytest: what each test did."""

    def __init__(self, suite: type[Conformance]) -> None:
        self.suite = suite
        self.findings: list[Finding] = []
        self.broken = ""
        self.missing: Exception | None = None

    def pytest_exception_interact(self, node: Any, call: Any) -> None:
        """The part needs a package."""
        if isinstance(call.excinfo.value, NOT_INSTALLED):
            self.missing = call.excinfo.value
            node.session.shouldstop = str(self.missing)

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
        self.findings.append(
            Finding(
                name=f"{said(test)}, {parameter.removesuffix(']')}" if bracket else said(test),
                outcome=outcomes[report.outcome],
                reason=_reason(report),
                meaning=meaning(self.suite, test),
            )
        )


def _reason(report: Any) -> str:
    if report.skipped:
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    if crash is not None and text == AssertionError.__name__:  # nothing is said: what is asserted
        text = linecache.getline(crash.path, crash.lineno)
    return " ".join(str(text).partition("\n\n")[0].split()) if report.failed else ""


def _last_line(report: Any) -> str:
    lines = [line for line in report.longreprtext.splitlines() if line.strip()]
    return lines[-1].removeprefix("E").strip() if lines else "no reason is known"
