"""The table of docs/planning.md that leads from a card to a run: each row is what the planner says."""

import re
import shlex
from pathlib import Path

import pytest
from program import Program

from rlcore_cli.main import run

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"
ROW = re.compile(r"^\| (\d+) × (\d+) GB \| (\S+) \| ([^|]+) \| ([\d.]+) GB \| `([^`]+)` \|$", re.MULTILINE)
ROWS = [match.groups() for match in ROW.finditer(PAGE.read_text())]
ASKED = ("--model", "--trainer", "--lora.rank", "--tokens-per-rank")


def _params() -> list[object]:
    """The planner of fsdp runs a step on tensors without memory, which takes most of a minute."""
    slow = [pytest.mark.full]
    return [
        pytest.param(*row, id=f"{row[0]} x {row[1]} {row[2]}", marks=slow if "fsdp" in row[3] else [])
        for row in ROWS
    ]


def test_the_table_goes_from_one_card_to_many() -> None:
    assert len(ROWS) >= 8
    assert len(ROWS) == sum(
        line.startswith("| ") and " GB | `" in line for line in PAGE.read_text().splitlines()
    )
    assert {("1", "24"), ("64", "80")} <= {row[:2] for row in ROWS}


def test_a_run_takes_every_command() -> None:
    text = PAGE.read_text() + (PAGE.parent / "tutorials" / "one_gpu.md").read_text()
    commands = re.findall(r"rlcore (train --algo [^`\n]+)", text)
    assert len(commands) == len(ROWS) + 1
    for command in {tuple(re.findall("--[^ ]+", command)): command for command in commands}.values():
        assert run([*shlex.split(command), "--task", "add", "--dry-run"]) == 0, command


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("gpus", "memory", "model", "method", "size", "command"), _params())
def test_a_row_is_what_the_planner_says(
    gpus: str, memory: str, model: str, method: str, size: str, command: str, program: Program
) -> None:
    words = shlex.split(command)
    asked = [word for flag in ASKED if flag in words for word in (flag, words[words.index(flag) + 1])]
    found = program.json("plan", *asked, "--gpus", gpus, "--gpu-memory", memory, "--json")
    [best, *_] = found["layouts"]
    assert found["command"] == command
    assert f"{max(phase['total'] for phase in best['phases']) / 1e9:.1f}" == size
    assert words[words.index("--model") + 1] == model
    assert ("--lora.rank" in words) == ("LoRA" in method)
    assert ("fsdp" in words) == ("fsdp" in method)
