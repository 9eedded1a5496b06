"""A DeepSeek-V3 as it is published: FP8 blocks or INT4 groups, a layer for multi-token prediction."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, DeepseekV3Config

from rlcore.api.part import Part
from rlcore_megatron.mcore.bridges.int4 import is_int4
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

INT4: dict[str, Any] = {
    **{"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]},
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                **{"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 8},
                "actorder": None,
            },
        }
    },
}


def test_fp8_is_made_full_and_the_prediction_layer_kept(tmp_path: Path) -> None:
    path = tmp_path / "in" / "published"
    make_checkpoint(path, CONFIG)
    publish_mtp(path)
    expected = publish_fp8(path, BLOCK)
    for extra in path.parent.glob("*.gradients"):
        extra.rename(tmp_path / extra.name)

    run_ranks("rlcore_megatron.testing.bridge_ranks:save_again", 1, BRIDGE, path.parent, tmp_path / "out")

    out = tmp_path / "out" / "published"
    torch.testing.assert_close(tensors_of(out), expected, rtol=0, atol=0)
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


def publish_int4(path: Path, group: int) -> dict[str, Tensor]:
    """Give a directory's experts random weights in INT4, by the format's definition.

    Returns what all weights stand for, in fp32.
    """
    stored, stands_for = tensors_of(path), tensors_of(path)
    for name in [name for name in stored if ".mlp.experts." in name]:
        rows, columns = stored.pop(name).shape
        numbers = torch.randint(-8, 8, (rows, columns))
        scale = (torch.rand(rows, columns // group) / 100 + 1e-4).bfloat16()
        packed = torch.zeros(rows, columns // 8, dtype=torch.int64)
        for place in range(8):
            packed |= (numbers[:, place::8] + 8) << (4 * place)
        signed = torch.where(packed >= 2**31, packed - 2**32, packed).int()
        shape = torch.tensor([rows, columns])
        stored |= {f"{name}_packed": signed, f"{name}_scale": scale, f"{name}_shape": shape}
        values = numbers.view(rows, -1, group) * scale.float()[..., None]
        stands_for[name] = values.view(rows, columns)
    for file in [*path.glob("*.safetensors"), *path.glob("*.index.json")]:
        file.unlink()
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = INT4
    (path / "config.json").write_text(json.dumps(config))
    return stands_for


def test_int4_is_read_by_its_definition(tmp_path: Path) -> None:
    path = tmp_path / "in" / "published"
    make_checkpoint(path, CONFIG)
    path.with_name("published.gradients").rename(tmp_path / "gradients")
    expected = publish_int4(path, 8)
    run_ranks("rlcore_megatron.testing.bridge_ranks:save_again", 1, BRIDGE, path.parent, tmp_path / "out")
    torch.testing.assert_close(tensors_of(tmp_path / "out" / "published"), expected, rtol=0, atol=0)
    assert "quantization_config" not in json.loads((tmp_path / "out/published/config.json").read_text())


@pytest.mark.parametrize(
    "change", [{"num_bits": 8}, {"symmetric": False}, {"actorder": "group"}, {"strategy": "tensor"}]
)
def test_other_forms_of_the_library_are_not_read(change: dict[str, Any]) -> None:
    weights = {**INT4["config_groups"]["group_0"]["weights"], **change}
    assert is_int4(INT4)
    assert not is_int4({**INT4, "config_groups": {"group_0": {"weights": weights}}})
    assert not is_int4({**INT4, "format": "int-quantized"})
