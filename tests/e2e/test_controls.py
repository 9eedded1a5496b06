"""Negative controls from the demo's own starting weights: each stays under 0.1."""

import json
from pathlib import Path

import pytest
from command import Run

CONTROLS = str(Path(__file__).with_name("controls.py"))
TRAIN = ("train", "--algo", "grpo", "--model", "qwen3", "--json", "--eval-every", "0")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "changed",
    [
        ("--plugin", CONTROLS, "--advantage", "shuffled"),
        ("--reward", "random"),
        ("--lr", "0"),
    ],
    ids=["shuffled", "random", "lr0"],
)
def test_nothing_is_learned_without_a_signal(run: Run, tmp_path: Path, changed: tuple[str, ...]) -> None:
    command = run(*TRAIN, *changed, "--run-dir", str(tmp_path / "run"), limit=380)
    [score] = json.loads(command.stdout)["eval"].values()
    assert score < 0.1
