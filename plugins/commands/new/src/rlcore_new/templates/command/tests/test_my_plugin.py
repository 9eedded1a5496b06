"""The command keeps what rlcore promises of commands, and says which step was best."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rlcore import METRICS_FILE, CheckpointError, ConfigError
from rlcore_testing.commands import CommandConformance

from rlcore_my_plugin.command import my_plugin


class TestMyPlugin(CommandConformance):
    command = my_plugin


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 1.5}, {"step": 3, "loss": 2.0}, {"step": 4}]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / METRICS_FILE).write_text(f'{text}{{"step": 5, "lo')
    return tmp_path


def said(*arguments: str) -> str:
    return CliRunner().invoke(my_plugin, arguments, catch_exceptions=False).output


def test_the_best_step_is_shown(run: Path) -> None:
    assert said(str(run), "--metric", "loss") == "loss: 3 at step 1 of 3\n"
    assert said(str(run), "--metric", "loss", "--lowest") == "loss: 1.5 at step 2 of 3\n"


def test_what_is_not_there_is_one_sentence(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"'los' is in no line of .* Did you mean 'loss'"):
        said(str(run), "--metric", "los")
    with pytest.raises(CheckpointError, match="is no folder of a run"):
        said(str(run / "nothing"))
