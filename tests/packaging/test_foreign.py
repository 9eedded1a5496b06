"""The packages of other frameworks are there, so that no test of them is passed over in silence."""

import sys
from importlib.metadata import Distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("requirements-foreign.txt", sys.path),
        ("requirements-verifiers.txt", [str(Path(sys.prefix) / "verifiers-today")]),
        ("requirements-ray-jobs.txt", [str(Path(sys.prefix) / "ray-jobs")]),
    ],
)
def test_they_are_installed_as_they_are_named(file: str, path: list[str]) -> None:
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    assert lines
    for name, _, version in (line.partition("==") for line in lines):
        [found] = {one.version for one in Distribution.discover(name=name, path=path)}
        assert found == version, name
