"""A gpt-oss as it is published, in MXFP4, and checkpoints of its biases and sinks under other layouts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_ranks import same, save_or_resume
from safetensors.torch import save_file
from torch import Tensor
from transformers import GptOssConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from rlcore import Part
from rlcore_testing.checkpoints import make_checkpoint, tensors_of
from rlcore_testing.ranks import run_ranks

BRIDGE = Part(name="gpt_oss", factory="rlcore_gpt_oss.bridge:GptOssBridge")
TINY: dict[str, Any] = {
    **{"vocab_size": 99, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    **{"eos_token_id": 1, "max_position_embeddings": 128, "sliding_window": 8},
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}


def publish_mxfp4(path: Path) -> dict[str, Tensor]:
    """Give a directory's experts random weights in MXFP4; returns what all weights stand for, in fp32."""
    stands_for, stored = tensors_of(path), tensors_of(path)
    for name in [name for name in stored if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = stored.pop(name).shape
        blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(120, 127, blocks.shape[:-1], dtype=torch.uint8)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        stands_for[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    for file in [*path.glob("*.safetensors"), *path.glob("*.index.json")]:
        file.unlink()
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (path / "config.json").write_text(json.dumps(config))
    return stands_for


def test_mxfp4_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "in" / "published"
    make_checkpoint(path, GptOssConfig(**TINY))
    path.with_name("published.gradients").rename(tmp_path / "gradients")
    expected = publish_mxfp4(path)
    run_ranks("rlcore_megatron.testing.bridge_ranks:save_again", 1, BRIDGE, path.parent, tmp_path / "out")
    torch.testing.assert_close(tensors_of(tmp_path / "out" / "published"), expected, rtol=0, atol=0)
    assert "quantization_config" not in json.loads((tmp_path / "out/published/config.json").read_text())


CUTS = (
    {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 2},
    {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_model_parallel_size": 2},
)


@pytest.mark.full
@pytest.mark.parametrize("cut", CUTS, ids=("expert tensor", "expert"))
def test_a_checkpoint_of_two_ranks_is_read_by_one(cut: dict[str, Any], tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "saved"
    make_checkpoint(model, GptOssConfig(**TINY))
    expected, _, norm = run_ranks(save_or_resume, 2, BRIDGE, model, folder, cut)[0]
    found, _, again = run_ranks(save_or_resume, 1, BRIDGE, model, folder, {})[0]
    same(found, expected)
    first = tensors_of(model)
    assert not any(torch.equal(first[name], values) for name, values in expected.items())
    assert again == pytest.approx(norm, rel=1e-4)
