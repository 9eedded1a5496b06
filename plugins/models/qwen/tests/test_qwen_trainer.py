"""What the trainer makes of a Qwen beside its logits: a value head, and weights in bf16."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlcore.api.part import ModelSpec, Part
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_qwen3

QWEN = Part(name="qwen", factory="rlcore_qwen.bridge:QwenBridge")
TP2_SP = {"tensor-model-parallel-size": "2", "sequence-parallel": "true"}
TOKENS = 32


def test_the_value_head_and_the_weights_in_bf16(tmp_path: Path) -> None:
    make_qwen3(tmp_path / "source")
    weights = tmp_path / "source" / "model.safetensors"
    source = {key: value.bfloat16() for key, value in load_file(weights).items()}
    save_file(source, weights, metadata={"format": "pt"})
    values, gradient, written = run_ranks(half_precision, 2, tmp_path, TP2_SP)[1]
    assert values.shape == (1, TOKENS, 1)
    assert values.dtype == torch.float32
    assert not values.any()
    assert gradient.shape == (1, 64)
    assert gradient.abs().max() > 0
    torch.testing.assert_close(written, source, rtol=0, atol=0)


def half_precision(
    rank: int, size: int, port: int, root: Path, fields: dict[str, Any]
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The values of a fresh value head, its gradient, and the weights of the policy as they are published."""
    from rlcore_megatron.mcore import parallel
    from rlcore_megatron.mcore.role.build import build_model
    from rlcore_megatron.mcore.role.weights import hf_tensors
    from rlcore_megatron.testing.bridge_ranks import packed, start

    start(rank, size, port, fields)
    spec = ModelSpec(path=str(root / "source"), bridge=QWEN, dtype="bf16", fields=fields)
    built = build_model(spec, trainable=False)
    written = {name: tensor.clone() for name, tensor in hf_tensors(built)}
    critic = build_model(spec, value_head=True)
    part = packed(torch.arange(TOKENS).view(4, -1), torch.ones(4, TOKENS // 4, dtype=torch.bool))
    values = critic.forward(part.tokens, part.positions, part.params)
    torch.autograd.backward(values.sum())
    gradient = critic.chunks[0].output_layer.weight.grad  # type: ignore[union-attr] # the head of GPTModel
    assert isinstance(gradient, Tensor)
    parallel.stop()
    return values.detach(), gradient, written
