"""The main job: `rlcore train --algo grpo --model qwen3`."""

import json
import tomllib
from pathlib import Path

import pytest
import torch
from command import SMALL, Run, rows, untimed
from documented import undocumented
from safetensors.torch import load_file

TRAIN = ("train", "--algo", "grpo", "--model", "qwen3")


@pytest.mark.daily
@pytest.mark.timeout(400)
def test_demo_learns_from_random_weights(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = run(*TRAIN, "--run-dir", str(folder), "--json", limit=380, fresh=True)
    summary = json.loads(command.stdout)
    assert summary["exit_reason"] == "completed"
    assert summary["run"] == str(folder)
    [score] = summary["eval"].values()
    assert score >= 0.95
    metrics = rows(folder)
    first, last = metrics[0], metrics[-1]
    [name] = [key for key in first if key.startswith("eval/") and key.endswith("/score")]
    assert first[name] <= 0.1
    assert last[name] == score
    assert [row["step"] for row in metrics] == list(range(summary["steps"] + 1))
    assert [row["weight_version"] for row in metrics[1:]] == list(range(summary["steps"]))
    assert 0 <= metrics[1]["train/kl_engine_max"] <= 1e-4
    assert not undocumented({key for row in metrics for key in row})
    assert tomllib.loads((folder / "run.toml").read_text())["algo"] == "grpo"
    assert any((folder / "samples").iterdir())
    assert (folder / "checkpoints" / str(summary["steps"]) / "state.json").is_file()


@pytest.mark.daily
def test_two_runs_of_one_seed_are_identical_and_another_seed_is_not(run: Run, tmp_path: Path) -> None:
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        run(*TRAIN, *SMALL, "--steps", "4", "--seed", seed, "--run-dir", str(tmp_path / name))
    assert untimed(tmp_path / "a") == untimed(tmp_path / "b")
    assert untimed(tmp_path / "a") != untimed(tmp_path / "c")


@pytest.mark.timeout(600)
def test_bf16_trains_publishes_and_exports(run: Run, tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    run(
        *TRAIN,
        *SMALL,
        *("--dtype", "bf16", "--steps", "3", "--run-dir", str(folder), "--export", str(out)),
        limit=500,
    )
    for row in rows(folder)[1:]:
        assert 0 < row["train/kl_engine"] <= 0.02, "trainer and engine round differently, and little"
        assert row["train/grad_norm"] > 0
    weights, before = (load_file(path / "model.safetensors") for path in (out, folder / "model"))
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert any(not torch.equal(weights[name], before[name].bfloat16()) for name in before)
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.daily
def test_dry_run_prints_a_file_that_gives_the_same_run(run: Run, tmp_path: Path) -> None:
    first = run(*TRAIN, "--steps", "3", "--loss.clip-high", "0.28", "--dry-run")
    file = tmp_path / "run.toml"
    file.write_text(first.stdout)
    second = run("train", "--config", str(file), "--dry-run")
    assert second.stdout == first.stdout
    assert not list(tmp_path.glob("command-*/runs"))


@pytest.mark.parametrize("task", ["reverse", "sort", "add"])
def test_every_task_runs(run: Run, tmp_path: Path, task: str) -> None:
    run(
        *(*TRAIN, *SMALL, "--task", task, "--steps", "2", "--minibatches", "2"),
        *("--run-dir", str(tmp_path / "run")),
    )
    metrics = rows(tmp_path / "run")
    assert len(metrics) == 3
    assert metrics[1]["rollout/reward_mean"] >= 0
