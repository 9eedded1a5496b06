"""Checks that every run makes of itself, and faults of plugins told in one sentence."""

import json
from pathlib import Path

from command import SMALL, Run, rows

PLUGIN = str(Path(__file__).with_name("late_filter.py"))
TRAIN = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", "3", "--plugin", PLUGIN)


def test_the_first_step_that_trains_is_checked_wherever_it_comes(run: Run, tmp_path: Path) -> None:
    """The bound is one that no two programs keep; before step 2 there is nothing to check."""
    command = run(
        *(*TRAIN, "--filter", "late", "--max-refills", "0", "--max-kl-engine", "1e-12"),
        *("--run-dir", str(tmp_path / "run")),
        code=1,
    )
    assert "log-prob" in command.stderr
    assert "Traceback" not in command.stderr
    metrics = rows(tmp_path / "run")
    assert [row["step"] for row in metrics] == [0, 1]
    assert metrics[1]["rollout/groups"] == 0
    assert metrics[1]["rollout/groups_dropped/early"] == 8
    assert (
        "Step 1 trains on nothing: all groups were dropped (rollout/groups_dropped/early: 8)."
        in command.stderr
    )


SERVICE = """
from dataclasses import replace
from rlcore import GenerationContext, GenerationStatus, Sample

async def down(ctx: GenerationContext, sample: Sample) -> Sample:
    return replace(sample, status=GenerationStatus.FAILED, failure="service_down")
"""


def test_a_run_whose_samples_all_fail_ends(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "service.py"
    file.write_text(SERVICE)
    command = run(
        *("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", "9", "--eval-every", "0"),
        *("--generator", f"{file}:down", "--max-refills", "0", "--run-dir", str(tmp_path / "run")),
        code=1,
    )
    assert "3 steps in a row had no sample with a reward: all groups were dropped (" in command.stderr
    assert "rollout/failed/service_down: 64" in command.stderr
    assert "Traceback" not in command.stderr
    assert [row["step"] for row in rows(tmp_path / "run")] == [0, 1, 2]


def test_a_fault_of_a_filter_is_one_sentence(run: Run, tmp_path: Path) -> None:
    command = run(*TRAIN, "--filter", "broken", "--run-dir", str(tmp_path / "run"), "--json", code=2)
    assert "The filter 'broken' failed: KeyError" in command.stderr
    last = json.loads(command.stdout.splitlines()[-1])
    assert (last["exit_reason"], last["run"]) == ("failed", str(tmp_path / "run"))
    assert "Traceback" not in command.stderr


def test_a_run_keeps_its_plugin_files_and_refuses_changed_ones(run: Run, tmp_path: Path) -> None:
    mine, folder = tmp_path / "mine.py", tmp_path / "run"
    mine.write_text(Path(PLUGIN).read_text())
    arguments = (*TRAIN[:-2], "--plugin", str(mine), "--filter", "late", "--max-refills", "2")
    run(*arguments, "--run-dir", str(folder))
    mine.unlink()
    moved = folder.rename(tmp_path / "moved")
    resume = ("train", "--resume", str(moved), "--steps", "4")
    assert str(moved / "plugins" / "mine.py") in run(*resume, "--dry-run").stdout
    copy = moved / "plugins" / "mine.py"
    copy.write_text(copy.read_text().replace("FIRST = 8", "FIRST = 9"))
    command = run(*resume, code=2)
    assert "mine" in command.stderr
    assert "has changed" in command.stderr
