"""What stands for the flag that chose a cluster before there were several."""

from pathlib import Path

import pytest
from program import Program

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
    command: list[str], found: str, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text('ray_address = "none"\n')
    assert program.refused(*command) == f"{found} {USE}"


def test_an_address_belongs_to_ray(program: Program) -> None:
    said = program.refused(*TRAIN, "--cluster", "processes", "--cluster.address", "10.0.0.1:6379")
    assert said == "--cluster.address belongs to cluster 'ray', but 'processes' is chosen."


def test_hosts_are_those_of_an_address(program: Program) -> None:
    assert "hosts needs address" in program.refused(*TRAIN, "--cluster", "ray", "--cluster.hosts", "2")
