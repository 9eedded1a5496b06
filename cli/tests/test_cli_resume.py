"""What may change at resume: the number of steps by its schedule, and where a reference is."""

from pathlib import Path

import pytest
from program import Program


@pytest.mark.parametrize(("schedule", "code"), [("linear", 2), ("constant", 0)])
def test_more_steps_need_a_schedule_that_does_not_bend(
    tmp_path: Path, program: Program, schedule: str, code: int
) -> None:
    chosen = ["--algo", "grpo", "--model", "qwen3", "--lr-schedule", schedule]
    (tmp_path / "run.toml").write_text(program("train", *chosen, "--dry-run"))
    program("train", "--resume", str(tmp_path), "--steps", "200", "--dry-run", code=code)
    said = "the learning rate of the steps already taken depends on it"
    assert (said in program.err) == (code == 2)


def test_ranks_and_places_of_a_reference_may_change(tmp_path: Path, program: Program) -> None:
    chosen = ["--algo", "grpo", "--model", "qwen3", "--kl-coef", "0.1", "--reference.placement", "swapped"]
    (tmp_path / "run.toml").write_text(program("train", *chosen, "--dry-run"))
    apart = ["--reference.placement", "resident", "--reference.ranks", "2"]
    program("train", "--resume", str(tmp_path), *apart, "--dry-run")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (
            '{"format": 1}',
            "format 1, and this rlcore reads format 4; resume the run with the version that wrote",
        ),
        ("{", "critic_workers is unknown"),  # damaged: an older checkpoint may be intact
    ],
)
def test_another_format_is_told_before_settings_that_it_had(
    tmp_path: Path, program: Program, state: str, said: str
) -> None:
    settings = program("train", "--algo", "grpo", "--model", "qwen3", "--dry-run")
    (tmp_path / "run.toml").write_text(f"critic_workers = 0\n{settings}")
    checkpoint = tmp_path / "checkpoints" / "2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "complete.json").touch()
    (checkpoint / "state.json").write_text(state)
    assert said in program.refused("train", "--resume", str(tmp_path))
