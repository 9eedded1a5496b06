"""Runs whose trainer sleeps while engines generate: the same numbers, whoever dies in whatever state."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, Command, Run, Start, gone, rows, untimed, wait_for
from refusals import sentence

from rlcore.runtime.handover import State

PLUGIN = str(Path(__file__).with_name("kill_in_state.py"))
_SHORT = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", "5", "--save-every", "2")
TRAIN = (*_SHORT, "--kl-coef", "0.01", "--reference.refresh-every", "2")
STATES = tuple(map(State, ("drain", "wake", "release", "resume", "publish", "train", "sleep", "generate")))
"""One for each time that the trainer of `TRAIN` gets the devices: steps 1 and 2, the reference and the
checkpoint after them, steps 3 and 4, the reference and the checkpoint."""
DOING = {State.WAKE: "at waking up", State.PUBLISH: "at going to sleep", State.SLEEP: "at going to sleep"}
"""What a trainer that dies in a state had been doing; in the others that depends on the moment."""
ROUNDING = ("train/kl_engine", "engine/", "rollout/aborted", "rollout/crashed", "rollout/failed")
"""Of a run whose engine was replaced: log-probs come from other batches, and requests are counted anew."""


def same(folder: Path, other: Path, *but: str) -> None:
    def kept(row: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in row.items() if not key.startswith(("train/asleep_mb", *but))}

    assert [kept(row) for row in untimed(folder)] == [kept(row) for row in untimed(other)]


@pytest.fixture(scope="session")
def awake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run lies that nobody disturbs."""
    return tmp_path_factory.mktemp("awake") / "run"


@pytest.fixture
def undisturbed(run: Run, awake: Path) -> Path:
    """The same, made when it is first asked for."""
    if not awake.exists():
        run(*TRAIN, "--run-dir", str(awake))
    return awake


@pytest.mark.daily
def test_a_sleep_changes_no_number(run: Run, undisturbed: Path, tmp_path: Path) -> None:
    """Nor do the checkpoint and the new reference, for which the trainer wakes."""
    folder = tmp_path / "run"
    run(*TRAIN, "--sleep", "all", "--run-dir", str(folder))
    same(folder, undisturbed)
    assert all(row["train/asleep_mb"] > 1 for row in rows(folder)[1:])


def test_an_engine_that_is_killed_is_replaced(run: Run, undisturbed: Path, tmp_path: Path) -> None:
    """Once in each state, whether the trainer gets the devices for a step, a reference or a checkpoint."""
    assert set(STATES) == set(State)
    folder, count = tmp_path / "run", len(STATES)
    kills = kill("rlcore_local", *STATES, after=0)
    run(*TRAIN, "--sleep", "all", *kills, "--engine-replacements", str(count), "--run-dir", str(folder))
    assert rows(folder)[-1]["engine/replaced"] == count
    same(folder, undisturbed, *ROUNDING)


def test_a_worker_that_is_killed_ends_the_run(
    start: Start, run: Run, undisturbed: Path, tmp_path: Path
) -> None:
    """In each state. The run then goes on, at first from its beginning, later from its checkpoint."""
    folder = tmp_path / "run"
    flags: tuple[str, ...] = (*TRAIN, "--sleep", "all", "--run-dir", str(folder))
    for after, state in zip((1, 1, 1, 1, 3, 3, 3, 3), STATES, strict=True):
        command = start(*flags, *kill("TrainWorker", state, after=after))
        wait_for(partial(_has_started, command), alive=command)
        processes = command.descendants()
        assert command.wait(120) == 1, state
        said = sentence(command.stderr)
        assert "Train worker 0 died: SIGKILL ended its process." in said, state
        assert DOING.get(state, "") in said, state
        gone(processes)
        assert rows(folder)[-1]["step"] == after, state
        flags = ("train", "--resume", str(folder))
    run(*flags, "--no-callback")
    same(folder, undisturbed)


def _has_started(command: Command) -> bool:
    return "Publishing the first weights" in command.stdout


def kill(victim: str, *states: str, after: int) -> tuple[str, ...]:
    return (
        *("--plugin", PLUGIN, "--callback", "kill", "--callback.kill.victim", victim),
        *("--callback.kill.states", ",".join(states), "--callback.kill.after", str(after)),
    )
