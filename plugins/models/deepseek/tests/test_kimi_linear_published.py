"""A Kimi-Linear as it is published: other names in config.json, and in its files another of a dense MLP."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import KimiLinearConfig

from rlcore import Part
from rlcore.weights.weights_check import check_weights
from rlcore_deepseek.adopt import kimi
from rlcore_deepseek.facts import kimi_linear
from rlcore_local.weights import Weights
from rlcore_megatron.plan.weights import parameters
from rlcore_megatron.testing.bridges import RANKS, TOLERANCE
from rlcore_testing.checkpoints import make_checkpoint, tensors_of
from rlcore_testing.ranks import run_ranks
from rlcore_toolkit import WeightNames

BRIDGE = Part(name="kimi_linear", factory="rlcore_deepseek.kimi_linear:KimiLinearBridge")
SIZES: dict[str, Any] = {
    **{"vocab_size": 99, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "moe_intermediate_size": 24, "num_experts": 4},
    **{"kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10},
    **{"rms_norm_eps": 0.1, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 1},
}
CONFIG = KimiLinearConfig(
    **SIZES,
    layer_types=["linear_attention", "full_attention"],
    linear_num_heads=4,
    linear_head_dim=8,
    num_experts_per_tok=3,
    n_shared_experts=2,
    max_position_embeddings=64,
)
PUBLISHED = {
    **SIZES,
    **{"model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "model_max_length": 64},
    **{"num_experts_per_token": 3, "num_shared_experts": 2, "first_k_dense_replace": 1, "mla_use_nope": True},
    "linear_attn_config": {
        **{"kda_layers": [1], "full_attn_layers": [2], "num_heads": 4, "head_dim": 8},
        "short_conv_kernel_size": 4,
    },
    "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"},
}


def test_its_files_are_read_served_and_written_by_their_names(
    tmp_path: Path,
) -> None:
    source = tmp_path / "published"
    reference = make_checkpoint(source, CONFIG)
    expected = {
        name.replace(".block_sparse_moe.", ".mlp.") if ".layers.0." in name else name: tensor
        for name, tensor in tensors_of(source).items()
    }
    for file in [*source.glob("*.safetensors"), *source.glob("*.index.json")]:
        file.unlink()
    save_file(expected, source / "model.safetensors", metadata={"format": "pt"})
    (source / "config.json").write_text(json.dumps(PUBLISHED))

    path = Path(kimi(str(source), tmp_path / "cache"))
    check_weights(path)
    config = json.loads((path / "config.json").read_text())
    assert (config["max_position_embeddings"], config["n_shared_experts"]) == (64, 2)
    buffers = sum(tensor.numel() for name, tensor in expected.items() if name.endswith("correction_bias"))
    assert parameters(kimi_linear(PUBLISHED)) == sum(map(torch.numel, expected.values())) - buffers

    inputs = {path.name: (reference.ids, reference.mask)}
    logits = run_ranks(f"{RANKS}:packed_logits", 1, BRIDGE, path.parent, inputs, "fp32")[0][path.name]
    torch.testing.assert_close(logits, reference.logits, rtol=0, atol=TOLERANCE)
    run_ranks(f"{RANKS}:save_again", 1, BRIDGE, path.parent, tmp_path / "out")
    torch.testing.assert_close(tensors_of(tmp_path / "out" / path.name), expected, rtol=0, atol=0)

    weights = Weights(path, torch.float32, None)
    assert weights.tensors().keys() == expected.keys()
    state = weights.model.state_dict()
    trained = WeightNames(weights.model, expected.keys()).writing(state.keys())
    assert dict(trained.tensors(state.__getitem__)).keys() == expected.keys()
    weights.update_from_tensors({name: -tensor for name, tensor in expected.items()})
    assert all(torch.equal(weights.tensors()[name], -tensor) for name, tensor in expected.items())
