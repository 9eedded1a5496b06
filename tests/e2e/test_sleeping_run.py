"""Runs whose trainer sleeps while engines generate: the same numbers, whoever dies in whatever state."""

from pathlib import Path
from typing import Any

import pytest
from command import LIMIT_S, SMALL, Run, Start, gone, rows, untimed, wait_for
from refusals import Refused, sentence

from rlcore.runtime.handover import State

PLUGIN = str(Path(__file__).with_name("kill_in_state.py"))
_SHORT = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", "3", "--save-every", "2")
TRAIN = (*_SHORT, "--kl-coef", "0.01", "--reference-refresh-every", "2")
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


@pytest.mark.parametrize("state", [state.value for state in State])
def test_an_engine_that_is_killed_is_replaced(
    run: Run, undisturbed: Path, tmp_path: Path, state: str
) -> None:
    folder = tmp_path / "run"
    run(*TRAIN, "--sleep", "all", *kill(state, "rlcore_local"), "--run-dir", str(folder))
    assert rows(folder)[-1]["engine/replaced"] == 1
    same(folder, undisturbed, *ROUNDING)


@pytest.mark.parametrize("state", ["wake", "publish", "sleep"])
def test_a_worker_that_is_killed_ends_the_run(
    start: Start, run: Run, undisturbed: Path, tmp_path: Path, state: str
) -> None:
    """Which then goes on from its checkpoint, or from its beginning."""
    folder = tmp_path / "run"
    flags = (*TRAIN, "--sleep", "all", "--save-every", "1", "--run-dir", str(folder))
    command = start(*flags, *kill(state, "TrainWorker"))
    wait_for(lambda: (folder / "metrics.jsonl").is_file(), alive=command)
    processes = command.descendants()
    assert command.wait(LIMIT_S) == 1
    # what publishes is put to sleep first, but for the weights
    doing = "waking up" if state == "wake" else "going to sleep"
    assert "Train worker 0 died: SIGKILL ended its process." in (said := sentence(command.stderr))
    assert said.endswith("s.")
    assert f"It had been at {doing} for" in said
    gone(processes)
    run("train", "--resume", str(folder), "--no-callback")
    same(folder, undisturbed)


@pytest.mark.daily
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--max-staleness", "1"), "where trainer and engines work at the same time; add --partial-rollouts"),
        (
            ("--engine-url", "http://127.0.0.1:1"),
            "with --engine-url, where engines have devices of their own",
        ),
    ],
)
def test_who_cannot_sleep(refused: Refused, flags: tuple[str, ...], said: str) -> None:
    assert said in refused(*TRAIN, "--sleep", "all", *flags)


def kill(state: str, victim: str) -> tuple[str, ...]:
    return (
        *("--plugin", PLUGIN, "--callback", "kill"),
        *("--callback.kill.state", state, "--callback.kill.victim", victim),
    )
