"""Checks that every run makes of itself, and faults of plugins told in one sentence."""

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


def test_a_fault_of_a_filter_is_one_sentence(run: Run, tmp_path: Path) -> None:
    command = run(*TRAIN, "--filter", "broken", "--run-dir", str(tmp_path / "run"), code=2)
    assert "The filter Broken failed: KeyError" in command.stderr
    assert "Traceback" not in command.stderr


def test_a_plugin_file_that_changed_is_refused_at_resume(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "mine.py"
    copy.write_text(Path(PLUGIN).read_text())
    arguments = (*TRAIN[:-2], "--plugin", str(copy), "--filter", "late", "--max-refills", "2")
    run(*arguments, "--run-dir", str(tmp_path / "run"))
    copy.write_text(copy.read_text().replace("FIRST = 8", "FIRST = 9"))
    command = run("train", "--resume", str(tmp_path / "run"), "--steps", "4", code=2)
    assert "mine" in command.stderr
    assert "has changed" in command.stderr
