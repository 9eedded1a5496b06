"""What the trainer makes of a Qwen beside its logits: a value head, and directories that it writes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlcore.spec import ModelSpec, Part
from rlcore.testing.ranks import run_ranks
from rlcore.testing.tiny import make_qwen3

QWEN = Part(name="qwen", factory="rlcore_qwen.bridge:QwenBridge")
TP2_SP = {"tensor-model-parallel-size": "2", "sequence-parallel": "true"}
TOKENS = 32


def test_the_value_head_and_a_directory_in_bf16(tmp_path: Path) -> None:
    make_qwen3(tmp_path / "source")
    weights = tmp_path / "source" / "model.safetensors"
    source = {key: value.bfloat16() for key, value in load_file(weights).items()}
    save_file(source, weights, metadata={"format": "pt"})
    values, gradient, said = run_ranks(half_precision, 2, tmp_path, TP2_SP)[1]
    assert "exists already" in said
    assert values.shape == (1, TOKENS, 1)
    assert values.dtype == torch.float32
    assert not values.any()
    assert gradient.shape == (1, 64)
    assert gradient.abs().max() > 0
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == source.keys()
    assert all(torch.equal(written[key], source[key]) for key in source)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def half_precision(
    rank: int, size: int, port: int, root: Path, fields: dict[str, Any]
) -> tuple[Tensor, Tensor, str]:
    """The values of a fresh value head, its gradient, and what a second writing of a directory says."""
    from rlcore.errors import CheckpointError
    from rlcore.megatron import parallel
    from rlcore.megatron.build import build_model
    from rlcore.megatron.weights import save_hf
    from rlcore.testing.bridge_ranks import packed, start

    start(rank, size, port, fields)
    spec = ModelSpec(path=str(root / "source"), bridge=QWEN, dtype="bf16", megatron=fields)
    built = build_model(spec, trainable=False)
    save_hf(built, root / "source", root / "out")
    with pytest.raises(CheckpointError) as caught:
        save_hf(built, root / "source", root / "out")
    critic = build_model(spec, value_head=True)
    part = packed(torch.arange(TOKENS).view(4, -1), torch.ones(4, TOKENS // 4, dtype=torch.bool))
    values = critic.forward(part.tokens, part.positions, part.params)
    torch.autograd.backward(values.sum())
    gradient = critic.chunks[0].output_layer.weight.grad  # type: ignore[union-attr] # the head of GPTModel
    assert isinstance(gradient, Tensor)
    parallel.stop()
    return values.detach(), gradient, str(caught.value)
