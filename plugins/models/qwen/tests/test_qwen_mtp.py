"""The layer for multi-token prediction of Qwen3-Next, Qwen3.5 and MiMo, which stands beside the decoder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_ranks import mtp_step
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    PretrainedConfig,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from rlcore import Part
from rlcore_qwen.adopt import mimo
from rlcore_testing.checkpoints import make_checkpoint
from rlcore_testing.mtp import as_mimo, mtp_reference, publish_mimo, publish_mtp
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import random_batch

LAYERS, FACTOR = 2, 0.3
MIXED: dict[str, Any] = {
    **{"vocab_size": 99, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": LAYERS + 1},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 64},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 6},
    **{"pad_token_id": None, "tie_word_embeddings": False, "rms_norm_eps": 1e-1},
    "layer_types": ["linear_attention", "full_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}
EXPERTS: dict[str, Any] = {
    **{"num_experts": 4, "num_experts_per_tok": 2},
    **{"moe_intermediate_size": 24, "shared_expert_intermediate_size": 16},
}
PLAIN = {name: MIXED[name] for name in MIXED if not name.startswith(("linear_", "layer_", "head_", "rope_"))}
MODELS: dict[str, tuple[str, PretrainedConfig]] = {
    "next:NextBridge": ("qwen3_next", Qwen3NextConfig(**MIXED, **EXPERTS)),
    "qwen3_5:DenseBridge": ("qwen3_5", Qwen3_5TextConfig(**MIXED)),
    "qwen3_5:SparseBridge": (
        "qwen3_5_moe",
        Qwen3_5MoeTextConfig(**{k: v for k, v in MIXED.items() if k != "intermediate_size"}, **EXPERTS),
    ),
    "mimo:MimoBridge": ("mimo", Qwen2Config(**PLAIN)),
}
NAMES = {
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "eh_proj": "fc",
    "shared_head.norm": "norm",
}
LAYER = f"model.layers.{LAYERS}."
COPIES = ("embed_tokens", "shared_head.head")


def _qwen(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """DeepSeek-V3's names of a layer → Qwen's."""
    found = {}
    for name, tensor in tensors.items():
        own = name.removeprefix(LAYER).removesuffix(".weight")
        if own not in COPIES:
            renamed = f"mtp.{NAMES[own]}.weight" if own in NAMES else name
            found[renamed.replace(LAYER, "mtp.layers.0.")] = tensor
    return found


def _published(path: Path) -> dict[str, Tensor]:
    """The directory's weights, its last layer as Qwen publishes one: its norms scale by 1 + weight."""
    tensors = _qwen(publish_mtp(path))
    for own in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"mtp.{NAMES[own]}.weight"] = tensors[f"mtp.{NAMES[own]}.weight"] - 1
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["mtp_num_hidden_layers"] = config.pop("num_nextn_predict_layers")
    (path / "config.json").write_text(json.dumps(config))
    return tensors


@pytest.mark.parametrize("factory", MODELS)
def test_it_learns_by_the_formula_and_is_published_as_it_was(
    factory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one rank, and where its embedding is on another stage than itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name, config = MODELS[factory]
    is_mimo = name == "mimo"
    plain, published, deepseek = (tmp_path / part for part in ("plain", "published", "deepseek"))
    make_checkpoint(plain, config)
    for path in (published, deepseek):
        shutil.copytree(plain, path)
    torch.manual_seed(1)
    publish_mtp(deepseek)
    torch.manual_seed(1)
    source = publish_mimo(published) if is_mimo else _published(published)
    loss, gradients = mtp_reference(plain, deepseek, random_batch(9), FACTOR, tmp_path / "gradients")
    bridge = Part(name=name, factory=f"rlcore_qwen.{factory}")
    for ranks, layout in ((1, {}), (2, {"pipeline_model_parallel_size": 2})):
        path = Path(mimo(str(published), None))
        found, weights, grown = run_ranks(mtp_step, ranks, bridge, path, FACTOR, layout)[-1]
        assert found == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(weights, source, rtol=0, atol=0)
        for own, gradient in (as_mimo(gradients, LAYERS) if is_mimo else _qwen(gradients)).items():
            assert gradient.abs().max() > 1e-4, own
            bound = 1e-5 * (1 + float(gradient.abs().max()))
            assert float((grown[own] - gradient).abs().max()) < bound, (ranks, own)
