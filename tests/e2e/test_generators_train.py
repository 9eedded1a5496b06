"""Generators beyond `single_turn`, through the command line."""

import contextlib
import json
from pathlib import Path
from typing import Any

import psutil
from command import SMALL, Run, Start, rows, untimed, wait_for

HERE = Path(__file__).parent
TURNS = 3


def test_an_environment_beside_a_generator_of_one_function(run: Run, tmp_path: Path) -> None:
    """Turns are trained on while some environments crash; a set is evaluated by a plain function."""
    folder = tmp_path / "run"
    source = ("--task", "episodes", "--source.text", "copy", "--source.held-out", "20")
    game = ("--generator.environment", "copy_game:CopyGame", "--generator.max-turn-tokens", "2")
    own = ("--plugin", str(HERE / "copy_game.py"), "--eval", "plain=copy", "--eval.plain.generator", "own")
    run(
        *("train", "--algo", "reinforce++", "--model", "qwen3", *source, *game, *own, *SMALL),
        *("--max-response-tokens", "24", "--max-staleness", "1", "--steps", "3"),
        *("--save-rollouts-every", "1", "--run-dir", str(folder)),
        packages=[str(HERE)],
    )
    steps = rows(folder)[1:]
    assert [row["generator/turns"] for row in steps] == [TURNS] * 3
    assert all(row["train/grad_norm"] > 0 and row["rollout/groups"] == 8 for row in steps)
    crashed = sum(row.get("rollout/failed/environment_crashed", 0) for row in steps)
    assert crashed == sum(row["rollout/failed"] for row in steps)
    assert crashed % 8 == 0, "every sample of a group, twice"
    assert rows(folder)[-1]["eval/plain/response_length_mean"] > 0
    saved = [json.loads(line) for line in (folder / "samples" / "rollout-1.jsonl").read_text().splitlines()]
    for row in saved:
        mask = row["trajectory"]["loss_mask"]
        assert mask[:2] == [0, 0], "the first observation"
        assert mask.count(0) == 2 * TURNS, "an observation before each turn"


def test_rollout_workers_change_no_number(start: Start, run: Run, tmp_path: Path) -> None:
    """An environment that crashes for some, and evaluations by a function of a file; in Ray too."""
    source = ("--task", "episodes", "--source.text", "copy", "--source.size", "31", "--source.held-out", "20")
    game = ("--generator.environment", "copy_game:CopyGame", "--generator.max-turn-tokens", "2")
    own = ("--plugin", str(HERE / "copy_game.py"), "--eval", "plain=copy", "--eval.plain.generator", "own")
    # One sequence at a time: when a turn comes decides the engine's batches, and these the last bits.
    few = ("--max-response-tokens", "24", "--steps", "2", "--engine.max-batch", "1", *SMALL)
    flags = ("train", "--algo", "reinforce++", "--model", "qwen3", *source, *game, *own, *few)
    here: dict[str, Any] = {"packages": [str(HERE)]}
    plain, processes, actors = (tmp_path / name for name in ("plain", "processes", "actors"))
    run(*flags, "--run-dir", str(plain), **here)
    workers = ("--rollout-workers", "2", "--run-dir")
    command = start(*flags, *workers, str(processes), **here)
    wait_for(lambda: _names(command.descendants()).count("RolloutWorker") == 2, alive=command)
    assert command.wait() == 0, command.stderr
    run(*flags, *workers, str(actors), **here, env={"PYTHONPATH": str(HERE)}, ray=True)
    assert sum(row["rollout/failed"] for row in rows(plain)[1:]) > 0, "the test is about them too"
    assert untimed(processes) == untimed(plain)
    assert untimed(actors) == untimed(plain)


def _names(processes: list[psutil.Process]) -> list[str]:
    names = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            names.append(process.name())
    return names


def test_a_task_of_harbor(run: Run, tmp_path: Path) -> None:
    """The source brings the generator, the sandbox and the reward; the task's own tests give the numbers."""
    task = tmp_path / "tasks" / "nothing"
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text("")
    (task / "instruction.md").write_text("Do nothing.")
    (task / "tests/test.sh").write_text("#!/bin/sh\necho 0.25 > /logs/verifier/reward.txt\n")
    folder = tmp_path / "run"
    run(
        *("train", "--algo", "reinforce++", "--model", "qwen3", "--task", "harbor"),
        *("--source.path", str(tmp_path / "tasks"), "--source.how", "", "--max-prompt-tokens", "100", *SMALL),
        *("--max-response-tokens", "8", "--steps", "1", "--run-dir", str(folder)),
    )
    [step] = rows(folder)[1:]
    assert (step["generator/reward"], step["rollout/reward_mean"], step["rollout/failed"]) == (0.25, 0.25, 0)
