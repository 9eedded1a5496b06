"""Evaluations on engines of their own: the same results, while training goes on."""

import signal
from pathlib import Path
from typing import Any

import pytest
from command import Run, Start, rows, wait_for
from documented import undocumented

SETTINGS = (
    *("train", "--algo", "grpo", "--model", "qwen3", "--steps", "5", "--prompts-per-step", "8"),
    *("--group-size", "4", "--eval-prompts", "8", "--eval-every", "2"),
)


def evaluated(run_dir: Path, name: str = "copy") -> dict[int, dict[str, Any]]:
    """Step whose weights were evaluated → what came of it."""
    found = {}
    for row in rows(run_dir):
        scores = {key: value for key, value in row.items() if key.startswith(f"eval/{name}/")}
        if scores:
            found[row.get("eval/step", row["step"])] = scores
    return found


@pytest.mark.parametrize("publish", ["disk", "delta", "broadcast"])
def test_the_results_are_the_same(run: Run, tmp_path: Path, publish: str) -> None:
    between, beside = tmp_path / "between", tmp_path / "beside"
    run(*SETTINGS, "--run-dir", str(between))
    own = ("--eval-engines", "1", "--engine-group", "own=1", "--engine.publish", publish)
    run(*SETTINGS, *own, "--run-dir", str(beside))
    assert evaluated(beside) == evaluated(between)
    assert list(evaluated(beside)) == [0, 2, 4, 5]
    metrics = rows(beside)
    assert not undocumented({key for row in metrics for key in row})
    late = [row for row in metrics if "eval/step" in row]
    assert [row["weight_version"] for row in late] == [row["eval/step"] for row in late]
    assert all(row["step"] >= row["eval/step"] for row in late)
    assert sum("train/loss" in row for row in metrics) == 5
    assert (beside / "logs" / "engine-1.log").is_file()


def test_given_responses_need_no_other_engine(run: Run, tmp_path: Path) -> None:
    run(
        *("train", "--algo", "sft", "--model", "qwen3", "--task", "copy"),
        *("--steps", "4", "--eval-every", "2"),
        *("--prompts-per-step", "8", "--eval-prompts", "4", "--eval-engines", "1"),
        *("--run-dir", str(tmp_path / "run")),
    )
    assert list(evaluated(tmp_path / "run")) == [0, 2, 4]
    assert not (tmp_path / "run" / "logs" / "engine-1.log").exists()


def test_nothing_to_evaluate_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "1", "label": "1"}\n')
    data = ("--data", str(tmp_path / "a.jsonl"), "--reward", "exact_match", "--eval-engines", "2")
    command = run("train", "--algo", "grpo", "--model", "qwen3", *data, code=2)
    assert "--eval-engines: found 2, but nothing is evaluated; leave it out." in command.stderr


SLOW = """\
algo = "grpo"
model = "qwen3"
steps = 200
prompts_per_step = 8
group_size = 4
eval_prompts = 4
eval_every = 2
eval_first = false
eval_engines = 1
plugin = ["slow.py"]

[eval.held_out]
task = "copy"

[eval.held_out.reward]
name = "slow"
"""

SLOW_REWARD = """\
import time


def slow(sample):
    time.sleep(1)
    return 1.0
"""


def test_sigterm_waits_for_the_results(start: Start, tmp_path: Path) -> None:
    """Once the checkpoint is saved: the weights that they are of would be gone after a resume."""
    (tmp_path / "run.toml").write_text(SLOW)
    (tmp_path / "slow.py").write_text(SLOW_REWARD)
    folder = tmp_path / "run"
    command = start("train", "--config", str(tmp_path / "run.toml"), "--run-dir", str(folder))
    wait_for(lambda: (folder / "metrics.jsonl").is_file() and len(rows(folder)) > 2, alive=command)
    command.process.send_signal(signal.SIGTERM)
    assert command.wait() == 0
    step = max(row["step"] for row in rows(folder))
    assert (folder / "checkpoints" / str(step) / "complete.json").is_file()
    assert rows(folder)[-1]["eval/step"] == step - step % 2, "the last one that had begun"
    assert min(evaluated(folder, "held_out")) == 2, "eval_first = false"
