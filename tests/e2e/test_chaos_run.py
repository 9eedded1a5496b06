"""200 steps on real SGLang servers behind the router, which are killed, while generators and rewards fail."""

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import chaos_run
import psutil
import pytest
from chaos_run import DOOMED, fate
from command import Command, Start, rows, wait_for
from inputs import chats, make_model, write_jsonl

from rlcore import Prompt, RunConfig
from rlcore.data.cursors import PromptCursor
from rlcore_files.config import FileConfig
from rlcore_files.source import FileSource

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(2000)]  # the longest: the first file to start

PYTHON = "RLCORE_SGLANG_PYTHON"
LIMIT_S = 1200.0
STEPS, BATCH, GROUP, STALENESS = 200, 4, 2, 2
KILLED_AFTER = (30, 120)
"""Steps, and each time the engine that has served longest: both in their turn."""


def has_done(folder: Path, step: int) -> bool:
    """The first row is of no step."""
    metrics = folder / "metrics.jsonl"
    return metrics.is_file() and metrics.read_bytes().count(b"\n") > step


def oldest_server(command: Command) -> psutil.Process:
    """Of the engines."""
    lines = {one: one.cmdline() for one in command.descendants()}
    guards = [
        one
        for one, line in lines.items()
        if "--model-path" in line and any("process_guard" in word for word in line)
    ]
    (server,) = min(guards, key=psutil.Process.create_time).children()
    return server


@pytest.fixture
def run_folder(start: Start, tmp_path: Path) -> Path:
    """Of the whole run; its prompts are those of `train.jsonl` beside it."""
    assert PYTHON in os.environ, f"{PYTHON} must name the interpreter that has sglang (`make test-sglang`)"
    folder, model = tmp_path / "run", make_model(tmp_path / "model", num_hidden_layers=2)
    data = write_jsonl(tmp_path / "train.jsonl", chats(2 * STEPS * BATCH, seed=3))
    command = start(
        *("train", "--algo", "grpo", "--model", str(model), "--data", str(data)),
        *("--engine", "sglang", "--engine.python", os.environ[PYTHON], "--engines", "2"),
        *("--router", "consistent_hashing", "--on-publish", "abort", "--max-staleness", str(STALENESS)),
        *("--plugin", chaos_run.__file__, "--generator", "crashing", "--reward", "fickle"),
        *("--reward-timeout", "2", "--reward-workers", "2", "--max-refills", "50"),
        *("--steps", str(STEPS), "--prompts-per-step", str(BATCH), "--group-size", str(GROUP)),
        *("--max-prompt-tokens", "96", "--max-response-tokens", "16"),
        *("--save-rollouts-every", "1", "--run-dir", str(folder)),
        ray=True,
    )
    for step in KILLED_AFTER:
        wait_for(lambda after=step: has_done(folder, after), LIMIT_S, alive=command)  # type: ignore[misc]  # mypy knows no lambda with a default
        oldest_server(command).send_signal(signal.SIGKILL)
    assert command.wait(LIMIT_S) == 0, command.stderr[-4000:]
    return folder


def trained(folder: Path, row: dict[str, Any], drawn: dict[int, Prompt]) -> set[int]:
    """The groups of a step, every token of which has a mask, a log-prob and weights that are not too old."""
    groups: set[int] = set()
    for line in (folder / "samples" / f"rollout-{row['step']}.jsonl").read_text().splitlines():
        sample = json.loads(line)
        record = sample["trajectory"]
        assert len(record["response_ids"]) == len(record["loss_mask"]) == len(record["log_probs"]) > 0
        assert row["weight_version"] - STALENESS <= min(sample["versions"])
        assert max(sample["versions"]) <= row["weight_version"]
        prompt = drawn[record["group_id"]]
        assert sample["prompt_id"] == prompt.prompt_id
        assert fate(prompt) not in DOOMED
        groups.add(record["group_id"])
    assert len(groups) == BATCH
    return groups


def test_nothing_is_lost_and_nothing_is_doubled(run_folder: Path) -> None:
    """Each prompt that was drawn is trained on once, or is in the checkpoint, or was doomed and dropped."""
    found = rows(run_folder)[1:]
    assert [row["step"] for row in found] == list(range(1, STEPS + 1))
    assert found[-1]["engine/replaced"] == len(KILLED_AFTER)
    saved = json.loads((run_folder / "checkpoints" / str(STEPS) / "state.json").read_text())
    state = saved["producer"]
    prompts = FileSource(FileConfig(path=str(run_folder.with_name("train.jsonl")))).prompts().train
    taken = PromptCursor(prompts, RunConfig().seed).take(state["next_group"])
    drawn = {number: prompt for number, (prompt, _) in enumerate(taken)}
    assert len({prompt.prompt_id for prompt in drawn.values()}) == len(drawn), "none is drawn twice"

    places: Counter[int] = Counter()
    for row in found:
        places.update(trained(run_folder, row, drawn))
    for kind in ("draws", "groups"):
        places.update(one["group_id"] for one in state["buffer"][kind])
    assert set(places.values()) == {1}

    fates = Counter(fate(drawn[number]) for number in drawn.keys() - places.keys())
    assert set(fates) == set(DOOMED), "no other is gone"
    for reason in set(DOOMED.values()):
        gone = sum(count for own, count in fates.items() if DOOMED[own] == reason)
        counted = sum(row.get(f"rollout/groups_dropped/{reason}", 0) for row in found)
        assert 0 < counted <= gone, f"{reason}: only the last ones are of no step"
    assert sum(row.get("rollout/crashed", 0) for row in found) > fates["crashes"]
