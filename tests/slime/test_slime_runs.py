"""slime's run scripts: each translates, and passes rlcore's checks."""

from pathlib import Path

import pytest
from slime_runs import RUNS, SIZES, translated, write_inputs
from slime_table import CHANGES, MEMORY_OF, PAGE, row

from rlcore import dump_settings
from rlcore.plugins.loader import load
from rlcore_cli.main import run
from rlcore_import.translation import FlagVerdict

REGISTRY = load().registry
REFUSED = {"glm4.7-30B-A3B": "--ranks: found 8, expected a multiple of 16"}
"""megatron-core refuses it as well: 8 expert-parallel ranks in 2 stages take 16 GPUs, and there are 8."""


NO_FIT = {"glm4.7-30B-A3B": "EP × PP = 16 does not divide 8 GPUs"}
"""Of the scripts on the GPUs that they are for."""


@pytest.mark.parametrize("name", RUNS)
def test_a_script_translates(name: str) -> None:
    rows = translated(name, REGISTRY).rows
    found = {
        row.flag
        for row in rows
        if row.outcome.verdict in (FlagVerdict.IMPOSSIBLE, FlagVerdict.OPEN, FlagVerdict.UNKNOWN)
    }
    assert not found
    assert set(SIZES) == set(RUNS)


@pytest.mark.grid
@pytest.mark.parametrize("name", RUNS)
def test_its_dry_run_and_plan_are_those_of_the_table(name: str, tmp_path: Path) -> None:
    found = row(name, REGISTRY, tmp_path)
    assert found in PAGE.read_text().splitlines(), "run tests/support/slime_table.py"
    assert REFUSED.get(name, "| passes |") in found
    on = f"{MEMORY_OF[name]} GB: " if name in MEMORY_OF else ""
    assert NO_FIT.get(name, f"| {on}fits: train ") in found


@pytest.mark.parametrize("name", CHANGES)
def test_what_does_not_run_here_runs_with_the_changes_of_the_table(name: str, tmp_path: Path) -> None:
    assert name in NO_FIT or name in MEMORY_OF
    found = row(name, REGISTRY, tmp_path, CHANGES[name])
    assert found in PAGE.read_text().splitlines(), "run tests/support/slime_table.py"
    assert "| passes | fits: train " in found


@pytest.mark.parametrize("name", MEMORY_OF)
def test_the_scripts_for_larger_gpus_do_not_fit_on_80_gb(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = translated(name, REGISTRY).settings
    write_inputs(tmp_path, name, found, REGISTRY)
    (tmp_path / "run.toml").write_text(dump_settings(found))
    model = str(tmp_path / found["model"])
    arguments = ("--config", str(tmp_path / "run.toml"), "--model", model, "--gpu-memory", "80", "--json")
    assert run(["plan", *arguments]) == 1
    what = "gradients" if name == "minimax-m2" else "engine's weights"
    assert f"GB of it for {what}" in capsys.readouterr().out
