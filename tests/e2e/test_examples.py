"""The projects in examples/: each command trains two steps, as its README has it."""

import shutil
from pathlib import Path

import pytest
from command import Command, rows

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ("--steps", "2", "--prompts-per-step", "4", "--group-size", "4", "--eval-prompts", "2")
TEACHER = "teacher.toml"
METRIC = {
    "math": "reward/math",
    "curriculum": "rollout/digits",
    "debate": "rollout/reward_mean",
    "distillation": "train/loss",
    "search_agent": "generator/found",
    "code_agent": "generator/tries",
    "openai_agent": "generator/turns",
}
"""Example → a metric that shows what it is about."""


def test_every_example_is_here() -> None:
    assert sorted(METRIC) == sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.daily if name == "search_agent" else pytest.mark.full)
        for name in METRIC
    ],
)
def test_an_example_trains(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    student: tuple[str, ...] = ()
    if (folder / TEACHER).is_file():
        saved = ("--save-every", "2", "--run-dir", "runs/teacher")
        train(folder, "--config", TEACHER, *SMALL, *saved)
        student = ("--teacher-model", "runs/teacher/checkpoints/2")
    train(folder, "--config", "run.toml", *SMALL, *student, "--run-dir", "run")
    steps = [row for row in rows(folder / "run") if row["step"]]
    assert len(steps) == 2
    assert all(METRIC[name] in row for row in steps)


def train(folder: Path, *flags: str) -> None:
    """`rlcore train` in `folder`, to its end."""
    command = Command("train", *flags, "--cluster", "processes", cwd=folder)
    try:
        assert command.wait(200) == 0, command.stderr[-4000:]
    finally:
        command.stop()
