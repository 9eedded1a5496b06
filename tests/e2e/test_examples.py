"""The projects in examples/: each command trains two steps, as its README has it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command import Command, rows

from rlcore_saved.batch_file import load_batch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ("--steps", "2", "--prompts-per-step", "4", "--group-size", "4", "--eval-prompts", "2")
TEACHER = "teacher.toml"
POLICIES = "policies.toml"
"""Settings of a run with further policies."""
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
REAL = "arithmetic"
"""The example with a real model."""
REAL_GAPS = {1: 5e-5, 2: 5e-4}
"""Step → most between the log-probs of two trainers, in fp32.

Adam's first steps follow the signs of the gradients, and that of one which is nearly 0 is chance.
"""


def test_every_example_is_here() -> None:
    assert sorted([*METRIC, REAL]) == sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())


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
        student = ("--teacher.model", "runs/teacher/checkpoints/2")
    train(folder, "--config", "run.toml", *SMALL, *student, "--run-dir", "run")
    steps = [row for row in rows(folder / "run") if row["step"]]
    assert len(steps) == 2
    assert all(METRIC[name] in row for row in steps)
    if (folder / POLICIES).is_file():
        train(folder, "--config", POLICIES, *SMALL, "--run-dir", "policies")
        samples = rows(folder / "policies")[-1]
        assert samples["train/samples"] == samples["policy.critic/samples"] == 16


@pytest.mark.full
def test_a_real_model_is_the_same_in_both_trainers(tmp_path: Path) -> None:
    folder = tmp_path / REAL
    shutil.copytree(EXAMPLES / REAL, folder, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    if not (folder / "model").is_dir():
        made = subprocess.run([sys.executable, "make_model.py"], cwd=folder, capture_output=True, text=True)
        if "No matching distribution" in made.stderr:
            pytest.skip(made.stderr.splitlines()[-1])
        assert made.returncode == 0, made.stderr[-4000:]
    lora = ("--lora.rank", "16", "--lr", "3e-4")  # all weights would take four times the memory
    flags = ("--config", "run.toml", *SMALL, "--minibatches", "2", "--max-response-tokens", "8", *lora)
    kept = ("--save-batches-every", "1", "--eval-every", "0", "--no-eval-first")
    said = train(folder, *flags, *kept, "--save-rollouts-every", "1", "--run-dir", "megatron")
    assert "Waiting for the checkpoint of step 2" in said
    same = ("--producer", "saved", "--producer.path", "megatron")  # the second step's samples too
    train(folder, *flags, *kept, *same, "--trainer", "fsdp", "--run-dir", "fsdp")
    for step, gap in REAL_GAPS.items():
        file = f"batches/{step}-rank-0.safetensors"
        batches = (load_batch(folder / trainer / file) for trainer in ("megatron", "fsdp"))
        ours, theirs = (batch.per_token["old_log_probs"] for batch in batches)
        assert ours.min() < -1, "the model had a choice"
        torch.testing.assert_close(ours, theirs, atol=gap, rtol=0)
    assert all(row["train/grad_norm"] > 0 for row in rows(folder / "fsdp") if row["step"])


def train(folder: Path, *flags: str) -> str:
    """`rlcore train` in `folder`, to its end; what it says."""
    command = Command("train", *flags, "--cluster", "processes", cwd=folder)
    try:
        assert command.wait(200) == 0, command.stderr[-4000:]
    finally:
        command.stop()
    return command.stdout
