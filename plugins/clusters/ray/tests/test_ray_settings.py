"""What stands for the flag that chose a cluster before there were several."""

from pathlib import Path

import pytest

from rlcore_cli.main import run

USE = (
    "rlcore before 0.1 has it; use --cluster.address for the address of a Ray, and --cluster processes in "
    "place of none."
)
TRAIN = ("train", "--algo", "grpo", "--model", "qwen3")


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ([*TRAIN, "--ray-address", "none"], "--ray-address is unknown."),
        ([*TRAIN, "--cluster", "processes", "--ray-address=auto"], "--ray-address is unknown."),
        (
            ["eval", "--model", "qwen3", "--task", "copy", "--ray-address", "10.0.0.1:6379"],
            "--ray-address is no setting of an evaluation.",
        ),
        ([*TRAIN, "--config", "run.toml"], "run.toml: ray_address is unknown."),
    ],
)
def test_the_flag_of_before_is_refused_with_those_of_now(
    command: list[str],
    found: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text('ray_address = "none"\n')
    assert run(command) == 2
    assert capsys.readouterr().err == f"error: {found} {USE}\n"


def test_an_address_belongs_to_ray(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*TRAIN, "--cluster", "processes", "--cluster.address", "10.0.0.1:6379"]) == 2
    said = "error: --cluster.address belongs to cluster 'ray', but 'processes' is chosen.\n"
    assert capsys.readouterr().err == said


def test_hosts_are_those_of_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*TRAIN, "--cluster", "ray", "--cluster.hosts", "2"]) == 2
    assert "hosts needs address" in capsys.readouterr().err
