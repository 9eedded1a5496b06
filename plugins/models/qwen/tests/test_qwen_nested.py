"""The published files of Qwen3.5: a vision tower and a draft beside the decoder, experts in one tensor."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlcore import ModelSpec, Part
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.build import build_model
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_megatron.testing.bridge_ranks import start
from rlcore_qwen.delta_tiny import tiny_qwen3_5, tiny_qwen3_5_moe
from rlcore_testing.nested import FILE, joined, make_nested
from rlcore_testing.ranks import run_ranks


def _published(
    rank: int, size: int, port: int, path: Path, factory: str, fields: Mapping[str, Any]
) -> dict[str, Tensor]:
    start(rank, size, port, fields)
    spec = ModelSpec(path=str(path), bridge=Part(name="qwen", factory=factory), fields=fields)
    tensors = {name: tensor.clone() for name, tensor in hf_tensors(build_model(spec, trainable=False))}
    parallel.stop()
    return tensors


@pytest.mark.parametrize(
    ("preset", "bridge", "layout"),
    [
        (tiny_qwen3_5, "DenseBridge", {"pipeline_model_parallel_size": 2}),
        (tiny_qwen3_5_moe, "SparseBridge", {"expert_model_parallel_size": 2}),
    ],
)
def test_all_of_the_files_is_published_to_the_bit(
    preset: Callable[[Path], Path], bridge: str, layout: Mapping[str, Any], tmp_path: Path
) -> None:
    path = make_nested(preset(tmp_path / "text"), tmp_path / "nested")
    published = run_ranks(_published, 2, path, f"rlcore_qwen.qwen3_5:{bridge}", layout)[0]
    source = load_file(path / FILE)
    assert joined(published).keys() == source.keys()
    for name, tensor in joined(published).items():
        assert tensor.dtype == source[name].dtype, name
        assert torch.equal(tensor, source[name]), name
