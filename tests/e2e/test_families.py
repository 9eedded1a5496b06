"""A model directory of each family, trained by the command: its config.json says everything about it."""

import json
import os
from pathlib import Path

import pytest
from command import Run, rows
from families import EXPERTS, FAMILIES, NO_SGLANG
from layouts import SIZES, STEPS, own_input

REPLAY = ("--replay-routing",)
EXPERT_2 = ("--megatron.expert-model-parallel-size", "2")
CONTEXT_2 = ("--megatron.context-parallel-size", "2")
VIRTUAL_2 = (
    *("--megatron.pipeline-model-parallel-size", "2"),
    *("--megatron.virtual-pipeline-model-parallel-size", "2"),
)
SGLANG_PYTHON = "RLCORE_SGLANG_PYTHON"


def _train(run: Run, tmp_path: Path, family: str, *more: str, limit: float = 400.0) -> None:
    flags = own_input(tmp_path, family, **FAMILIES[family])
    folder = tmp_path / "run"
    arguments = ("train", "--algo", "grpo", *flags, *SIZES, *more, "--run-dir", str(folder), "--json")
    summary = json.loads(run(*arguments, limit=limit).stdout)
    assert (summary["steps"], summary["exit_reason"]) == (STEPS, "completed")
    for row in rows(folder)[1:]:
        assert 0 <= row["train/kl_engine_max"] <= 1e-4
        assert row["train/grad_norm"] > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("family", "layout"), [("llama", CONTEXT_2), ("glm4", VIRTUAL_2), ("minimax_m2", (*EXPERT_2, *REPLAY))]
)
def test_a_family_trains(run: Run, tmp_path: Path, family: str, layout: tuple[str, ...]) -> None:
    _train(run, tmp_path, family, *layout)


@pytest.mark.sglang
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in NO_SGLANG])
def test_a_family_trains_with_a_real_sglang(run: Run, tmp_path: Path, family: str) -> None:
    """Its log-probs of two versions of the weights, the second published to it."""
    python = os.environ[SGLANG_PYTHON]
    replay = REPLAY if family in EXPERTS else ()
    _train(run, tmp_path, family, *replay, "--engine", "sglang", "--engine.python", python, limit=800.0)
