"""The packages of other frameworks are there, so that no test of them is passed over in silence."""

from importlib.metadata import version
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "requirements-foreign.txt"


@pytest.mark.full
def test_they_are_installed_as_they_are_named() -> None:
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert [f"{name}=={version(name)}" for name, _, _ in (line.partition("==") for line in lines)] == lines
