"""A model directory of each family, trained by the command: its config.json says everything about it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command import Run, rows
from layouts import SIZES, STEPS, own_input

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
LATENT = {
    **{"q_lora_rank": 48, "kv_lora_rank": 32, "num_key_value_heads": 4, "rope_parameters": YARN},
    **{"qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "head_dim": 16, "v_head_dim": 32},
    **{"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    **{"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0},
    **{"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},  # SGLang reads them
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA3, "tie_word_embeddings": True},
    "glm4": {},
    "qwen2": {},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64},
    "deepseek_v3": LATENT,
}
EXPERTS = ("qwen3_moe", "deepseek_v3")
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
    ("family", "layout"), [("llama", CONTEXT_2), ("glm4", VIRTUAL_2), ("qwen3_moe", (*EXPERT_2, *REPLAY))]
)
def test_a_family_trains(run: Run, tmp_path: Path, family: str, layout: tuple[str, ...]) -> None:
    _train(run, tmp_path, family, *layout)


@pytest.mark.sglang
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_with_a_real_sglang(run: Run, tmp_path: Path, family: str) -> None:
    """Its log-probs of two versions of the weights, the second published to it."""
    python = os.environ[SGLANG_PYTHON]
    replay = REPLAY if family in EXPERTS else ()
    _train(run, tmp_path, family, *replay, "--engine", "sglang", "--engine.python", python, limit=800.0)
