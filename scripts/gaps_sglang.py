"""How far the trainer is from a real SGLang on the CPU, family by family, in fp32.

Each is a run of two steps of the tiny preset, or of a relative of it, with a publication between them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore_deepseek.tiny import CONFIG as DEEPSEEK
from rlcore_gemma.tiny import CONFIG as GEMMA
from rlcore_glm.tiny import CONFIG as GLM
from rlcore_llama.tiny import CONFIG as LLAMA
from rlcore_qwen.tiny import CONFIG as QWEN
from rlcore_toolkit import TINY_SIZES, write_tiny_model

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
YARN = {
    **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
}
MISTRAL = {
    **{key: value for key, value in LLAMA.items() if key not in ("attention_bias", "mlp_bias")},
    **{"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None},
}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {**TINY_SIZES, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": QWEN,
    "llama": LLAMA,
    "glm4": GLM,
    "qwen3_moe": {
        **QWEN,
        **EXPERTS,
        **{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8},
    },
    "glm4_moe": {
        **TINY_SIZES,
        **EXPERTS,
        **{"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "n_routed_experts": 8},
        **{"n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
        **{"routed_scaling_factor": 1.0, "num_nextn_predict_layers": 0},
    },
    "glm4_moe_lite": {
        **{key: value for key, value in DEEPSEEK.items() if key != "rope_parameters"},
        **{"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "q_lora_rank": 24},
        **{"n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-6},
    },
    "deepseek_v3": {
        **DEEPSEEK,
        **{"q_lora_rank": 24, "rope_parameters": YARN, "n_group": 4, "topk_group": 2},
        **{"routed_scaling_factor": 2.5},
    },
    "mimo": {**TINY_SIZES, "architectures": ["MiMoForCausalLM"], "model_type": "qwen2"},
    "gemma3": {**GEMMA, "tie_word_embeddings": True},
    "mistral": MISTRAL,
    "ministral3": {
        **MISTRAL,
        **{"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3"},
        "max_position_embeddings": 64,  # beyond the original ones SGLang's queries grow otherwise
        "rope_parameters": {
            **{**YARN, "original_max_position_embeddings": 64},
            "llama_4_scaling_beta": 0.1,
        },
    },
}
STEPS = ("--steps", "2", "--prompts-per-step", "8", "--group-size", "4", "--eval-every", "0", "--lr", "1e-3")
TOKENS = ("--max-prompt-tokens", "32", "--max-response-tokens", "8")


def version(python: str) -> str:
    """Of the SGLang that `python` has."""
    ask = "import importlib.metadata; print(importlib.metadata.version('sglang'))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


def measured(family: str, python: str) -> dict[str, dict[str, float]]:
    """Column → the largest |trainer - engine| log-prob of each step."""
    with tempfile.TemporaryDirectory() as folder:
        return {"SGLang": _measured(Path(folder), family, python)}


def _measured(folder: Path, family: str, python: str) -> dict[str, float]:
    model, run_dir = write_tiny_model(folder / "model", FAMILIES[family]), folder / "run"
    engine = ("--engine", "sglang", "--engine.python", python, "--max-kl-engine", "10")
    rlcore = str(Path(sys.executable).with_name("rlcore"))
    command = [rlcore, "train", "--algo", "grpo", "--model", str(model), *STEPS, *TOKENS, *engine]
    found = subprocess.run(
        [*command, "--run-dir", str(run_dir)], capture_output=True, text=True, timeout=3600, check=False
    )
    if found.returncode:
        raise SystemExit(f"{family}: {found.stderr[-4000:]}")
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {f"step {row['step']}": row["train/kl_engine_max"] for row in rows if "train/kl_engine_max" in row}
