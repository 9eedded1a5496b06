"""Runs of verl and TRL translate, and pass rlcore's checks, as the page about them says."""

from pathlib import Path

import pytest
from foreign_runs import TRL, VERL, row

from rlcore.plugins.loader import load

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/migrating_from_verl_and_trl.md").read_text().splitlines()
REGISTRY = load().registry


@pytest.mark.parametrize("name", [*VERL, *TRL])
def test_a_run_translates_and_its_dry_run_passes(name: str, tmp_path: Path) -> None:
    found = row(name, REGISTRY, tmp_path)
    assert found.endswith("| passes |")
    assert found in PAGE, "run tests/support/foreign_runs.py"
