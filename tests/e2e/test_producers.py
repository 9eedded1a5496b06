"""A producer and a growing source of a plugin file, through the command line: trained, saved, resumed."""

import tomllib
from pathlib import Path

from command import Run, rows, untimed

PLUGIN = ("--plugin", str(Path(__file__).with_name("rollout_parts.py")))
TRAIN = ("train", *PLUGIN, "--algo", "grpo", "--model", "qwen3", "--task", "harder", "--producer", "half")
SMALL = ("--prompts-per-step", "6", "--group-size", "4", "--eval-every", "0", "--no-filter")


def test_a_plugin_makes_the_rollouts_and_the_prompts(run: Run, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(*TRAIN, *SMALL, "--steps", "3", "--save-every", "2", "--run-dir", str(whole))
    run(*TRAIN, *SMALL, "--steps", "2", "--run-dir", str(broken))
    run("train", "--resume", str(broken), "--steps", "3")
    found = rows(whole)[1:]
    assert [row["train/samples"] for row in found] == [12, 12, 12]
    assert [row["rollout/halved"] for row in found] == [3, 3, 3]
    digits = [row["rollout/digits"] for row in found]
    assert digits == sorted(digits)
    assert digits[-1] > 1, "some answer was worth something"
    timeless = [{key: value for key, value in row.items() if "eval/" not in key} for row in untimed(broken)]
    assert timeless == [
        {key: value for key, value in row.items() if "eval/" not in key} for row in untimed(whole)
    ]
    assert tomllib.loads((broken / "run.toml").read_text())["producer"] == "half"
