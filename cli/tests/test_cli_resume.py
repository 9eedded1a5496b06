"""What may change at resume: the number of steps by its schedule, and where a reference is."""

from pathlib import Path

import pytest

from rlcore_cli.main import run


@pytest.mark.parametrize(("schedule", "code"), [("linear", 2), ("constant", 0)])
def test_more_steps_need_a_schedule_that_does_not_bend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], schedule: str, code: int
) -> None:
    chosen = ["--algo", "grpo", "--model", "qwen3", "--lr-schedule", schedule]
    assert run(["train", *chosen, "--dry-run"]) == 0
    (tmp_path / "run.toml").write_text(capsys.readouterr().out)
    assert run(["train", "--resume", str(tmp_path), "--steps", "200", "--dry-run"]) == code
    error = capsys.readouterr().err
    assert ("the learning rate of the steps already taken depends on it" in error) == (code == 2)


def test_ranks_and_places_of_a_reference_may_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--algo", "grpo", "--model", "qwen3", "--kl-coef", "0.1", "--reference.placement", "swapped"]
    assert run(["train", *chosen, "--dry-run"]) == 0
    (tmp_path / "run.toml").write_text(capsys.readouterr().out)
    apart = ["--reference.placement", "resident", "--reference.ranks", "2"]
    assert run(["train", "--resume", str(tmp_path), *apart, "--dry-run"]) == 0


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str, said: str
) -> None:
    assert run(["train", "--algo", "grpo", "--model", "qwen3", "--dry-run"]) == 0
    (tmp_path / "run.toml").write_text(f"critic_workers = 0\n{capsys.readouterr().out}")
    checkpoint = tmp_path / "checkpoints" / "2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "complete.json").touch()
    (checkpoint / "state.json").write_text(state)
    assert run(["train", "--resume", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
