"""A model directory of each family, trained by the command: its config.json says everything about it."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Run, rows
from families import DELTA, EXPERTS, FAMILIES, NO_SGLANG, QWEN3_5_MOE, SCALED, WINDOWS
from layouts import SIZES, STEPS, own_input
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from rlcore_testing.nested import FILE, NESTED, joined, make_nested

REPLAY = ("--replay-routing",)
EXPERT_2 = ("--megatron.expert-model-parallel-size", "2")
CONTEXT_2 = ("--megatron.context-parallel-size", "2")
TENSOR_2 = ("--megatron.tensor-model-parallel-size", "2")
FSDP = ("--trainer", "fsdp")
DECODER = rf"{'|'.join(NESTED)}|.*lm_head\."
VIRTUAL_2 = (
    *("--megatron.pipeline-model-parallel-size", "2"),
    *("--megatron.virtual-pipeline-model-parallel-size", "2"),
)
SGLANG_PYTHON = "RLCORE_SGLANG_PYTHON"


def _train(run: Run, tmp_path: Path, flags: Sequence[str], *more: str, limit: float = 400.0) -> None:
    folder = tmp_path / "run"
    arguments = ("train", "--algo", "grpo", *flags, *SIZES, *more, "--run-dir", str(folder), "--json")
    summary = json.loads(run(*arguments, limit=limit).stdout)
    assert (summary["steps"], summary["exit_reason"]) == (STEPS, "completed")
    for row in rows(folder)[1:]:
        assert 0 <= row["train/kl_engine_max"] <= 1e-4
        assert row["train/grad_norm"] > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("llama", CONTEXT_2),
        ("glm4", VIRTUAL_2),
        ("minimax_m2", EXPERT_2),
        ("glm_moe_dsa", (*CONTEXT_2, *REPLAY, "--replay-indexer")),
    ],
)
def test_a_family_trains(run: Run, tmp_path: Path, family: str, layout: tuple[str, ...]) -> None:
    _train(run, tmp_path, own_input(tmp_path, family, **FAMILIES[family]), *layout)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("family", "changes", "flags"),
    [
        ("qwen3_5_moe_text", QWEN3_5_MOE, (*EXPERT_2, *REPLAY)),
        pytest.param("qwen3_5_text", DELTA, FSDP, marks=pytest.mark.full),
        pytest.param("gemma3_text", WINDOWS, TENSOR_2, marks=pytest.mark.full),
        ("gemma3_text", WINDOWS, FSDP),
        ("ministral3", {"rope_parameters": SCALED}, TENSOR_2),
        pytest.param("ministral3", {"rope_parameters": SCALED}, FSDP, marks=pytest.mark.full),
    ],
)
def test_a_decoder_in_a_larger_model_trains_and_is_exported_with_it(
    run: Run, tmp_path: Path, family: str, changes: dict[str, Any], flags: Sequence[str]
) -> None:
    """As it is published: some with the experts of a layer in one tensor."""
    data = own_input(tmp_path / "text", family, **changes)
    path = make_nested(tmp_path / "text" / "model", tmp_path / "whole")
    _train(run, tmp_path, (*data, "--model", str(path)), *flags)
    out = tmp_path / "out"
    run("export", str(tmp_path / "run"), str(out))
    models: Any = AutoModelForImageTextToText  # transformers types the pair that it returns as a model
    _, info = models.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    before, after = load_file(path / FILE), joined(load_file(out / FILE))
    if flags == FSDP:
        before = {name: tensor for name, tensor in before.items() if not name.startswith("mtp.")}
    assert after.keys() == before.keys()
    same = {name for name, tensor in before.items() if torch.equal(tensor, after[name])}
    assert same == {name for name in before if not re.match(DECODER, name)}


@pytest.mark.sglang
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in NO_SGLANG])
def test_a_family_trains_with_a_real_sglang(run: Run, tmp_path: Path, family: str) -> None:
    """Its log-probs of two versions of the weights, the second published to it."""
    python = os.environ[SGLANG_PYTHON]
    replay = REPLAY if family in EXPERTS else ()
    flags = own_input(tmp_path, family, **FAMILIES[family])
    _train(run, tmp_path, flags, *replay, "--engine", "sglang", "--engine.python", python, limit=800.0)
