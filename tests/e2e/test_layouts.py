"""A model directory and a prompt file of the user's own, under every layout of the trainer."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from command import Run, rows
from layouts import GROUP, LAYOUTS, PROMPTS, STEPS, Layouts

RELATIVE = 1e-4
SAME = ("train/loss", "train/grad_norm", "train/entropy")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", [pytest.param("tp2_sp", marks=pytest.mark.daily), "pp2", "dp2"])
def test_first_step_is_the_same_under_every_layout(layouts: Layouts, layout: str) -> None:
    one, other = (rows(layouts.run(name)) for name in ("one", layout))
    _check_run(one)
    _check_run(other)
    expected, found = one[1], other[1]
    assert _rollout(found) == _rollout(expected), "the engine started from the same weights"
    assert expected["train/loss"] != 0
    assert expected["train/grad_norm"] > 0
    for key in SAME:
        assert found[key] == pytest.approx(expected[key], rel=RELATIVE), key
    if "--engines" in LAYOUTS[layout]:
        assert (layouts.run(layout) / "logs" / "engine-1.log").is_file()
    assert other[0]["eval/held_out/reward_mean"] == one[0]["eval/held_out/reward_mean"]


@pytest.mark.timeout(600)
def test_saved_under_one_layout_and_resumed_under_another(layouts: Layouts, run: Run, tmp_path: Path) -> None:
    whole, again = layouts.run("tp2_sp"), tmp_path / "again"
    shutil.copytree(whole, again)
    shutil.rmtree(again / "checkpoints" / str(STEPS))
    tensor, pipeline = "--megatron.tensor-model-parallel-size", "--megatron.pipeline-model-parallel-size"
    run("train", "--resume", str(again), tensor, "1", "--megatron.sequence-parallel", "false", pipeline, "2")
    expected, found = rows(whole)[STEPS], rows(again)[STEPS]
    assert _rollout(found) == _rollout(expected), "the engine was given the same weights"
    for key in SAME:
        assert found[key] == pytest.approx(expected[key], rel=RELATIVE), key


def _check_run(metrics: list[dict[str, Any]]) -> None:
    assert [row["step"] for row in metrics] == list(range(STEPS + 1))
    for row in metrics[1:]:
        assert row["rollout/samples"] == PROMPTS * GROUP
        assert row["rollout/reward_std"] > 0
        assert row["train/updates"] == 2
        assert 0 <= row["train/kl_engine_max"] <= 1e-4


def _rollout(row: dict[str, Any]) -> dict[str, Any]:
    """What the engine and the rewards made, without what a clock measured."""
    kept = ("rollout/", "reward/")
    return {key: row[key] for key in row if key.startswith(kept) and key != "rollout/tokens_per_s"}
