"""An asynchronous run trains on tokens that are not too old, and goes on after it was told to end."""

import json
from pathlib import Path

from command import SMALL, Run, Start, rows, wait_for

TRAIN = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--eval-every", "4", "--steps", "10")
ASYNCHRONOUS = ("--max-staleness", "1", "--on-publish", "abort", "--save-every", "3")


def test_an_asynchronous_run_is_stopped_and_resumed(run: Run, start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = start(*TRAIN, *ASYNCHRONOUS, "--run-dir", str(folder))
    wait_for(lambda: (folder / "metrics.jsonl").is_file() and len(rows(folder)) > 3, alive=command)
    command.process.terminate()
    command.wait()
    step = rows(folder)[-1]["step"]
    state = json.loads((folder / "checkpoints" / str(step) / "state.json").read_text())
    held = state["producer"]["buffer"]
    present = [one["group_id"] for one in [*held["draws"], *held["groups"]]]
    ahead = 8 * min(2, 10 - step)
    assert len(present) == len(set(present)) == ahead, (
        "two batches are in progress, as far as there are steps"
    )
    assert state["producer"]["next_group"] == 8 * step + ahead
    run("train", "--resume", str(folder), "--steps", str(step + 3))
    found = rows(folder)[1:]
    assert [row["step"] for row in found] == list(range(1, step + 4))
    assert all(row["rollout/groups"] == 8 and row["rollout/staleness_max"] <= 1 for row in found)
    assert max(row["rollout/staleness_max"] for row in found) == 1
