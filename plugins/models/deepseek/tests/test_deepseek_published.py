"""A DeepSeek-V3 as it is published: FP8 blocks with scales, and a layer for multi-token prediction."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModelForCausalLM, DeepseekV3Config

from rlcore.api.part import Part
from rlcore_testing.checkpoints import make_checkpoint, publish_fp8, tensors_of
from rlcore_testing.mtp import publish_mtp
from rlcore_testing.ranks import run_ranks

MODELS: Any = AutoModelForCausalLM  # transformers leaves much of it untyped
BLOCK = (8, 16)
BRIDGE = Part(name="deepseek_v3", factory="rlcore_deepseek.bridge:DeepseekBridge")
CONFIG = DeepseekV3Config(
    vocab_size=64,
    hidden_size=40,  # no multiple of a block
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=2,
    q_lora_rank=20,
    kv_lora_rank=16,
    qk_nope_head_dim=12,
    qk_rope_head_dim=8,
    v_head_dim=10,
    moe_intermediate_size=24,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    num_mtp_layers=0,
    max_position_embeddings=64,
)


def test_fp8_is_made_full_and_the_prediction_layer_kept(tmp_path: Path) -> None:
    path = tmp_path / "in" / "published"
    make_checkpoint(path, CONFIG)
    publish_mtp(path)
    expected = publish_fp8(path, BLOCK)
    for extra in path.parent.glob("*.gradients"):
        extra.rename(tmp_path / extra.name)

    run_ranks("rlcore_megatron.testing.bridge_ranks:save_again", 1, BRIDGE, path.parent, tmp_path / "out")

    out = tmp_path / "out" / "published"
    written = {name: tensor for file in out.glob("*.safetensors") for name, tensor in load_file(file).items()}
    assert written.keys() == expected.keys()
    assert sum(not torch.equal(expected[name], tensor) for name, tensor in tensors_of(out).items()) == 0
    saved = json.loads((out / "config.json").read_text())
    assert "quantization_config" not in saved
    assert saved["num_nextn_predict_layers"] == 1
    model, info = MODELS.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]
    assert all(name.startswith("model.layers.2.") for name in info["unexpected_keys"])
    ids = torch.arange(8)[None]
    loss = functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])
    assert torch.isfinite(loss)


def test_a_layer_that_is_said_but_not_there_is_left_out(tmp_path: Path) -> None:
    """As transformers saves a model that it has read."""
    path = tmp_path / "in" / "saved"
    make_checkpoint(path, CONFIG)
    for extra in path.parent.glob("*.gradients"):
        extra.rename(tmp_path / extra.name)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    run_ranks("rlcore_megatron.testing.bridge_ranks:save_again", 1, BRIDGE, path.parent, tmp_path / "out")
    out = tmp_path / "out" / "saved"
    assert tensors_of(out).keys() == tensors_of(path).keys()
    assert json.loads((out / "config.json").read_text())["num_nextn_predict_layers"] == 0
