"""Checkpoints of models whose layers are not alike go from one layout to another."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore import ModelSpec, OptimizerSettings, Part, even_shares
from rlcore_megatron.fields import split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_qwen.delta_tiny import tiny_next, tiny_qwen3_5
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import policy_loss, random_batch
from rlcore_toolkit.presets import VOCABULARY

TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
PIPELINE = {"pipeline_model_parallel_size": 2}


def _role(rank: int, world: int, port: int, path: str, factory: str, megatron: dict[str, Any]) -> Role:
    parallel.start(rank, world, "127.0.0.1", port, timeout=60.0, **split(megatron).layout)
    spec = ModelSpec(path=path, bridge=Part(name="delta", factory=factory), fields=megatron)
    # eps well above the noise of tiny gradients, whose sign Adam would otherwise blow up to a whole step
    return Role(spec, OptimizerSettings(lr=1e-2, adam_eps=1e-4))


def _train(role: Role, seed: int) -> Mapping[str, Tensor]:
    batch = random_batch(8, seed)
    batch = replace(batch, tokens=batch.tokens % len(VOCABULARY))
    mine = even_shares(batch.lengths.tolist(), parallel.data_size())[parallel.data_rank()]
    role.train(batch.select(mine), policy_loss, temperature=1.0, tokens_per_rank=40)
    return {name: tensor.clone() for name, tensor in hf_tensors(role.built)}


def _save(
    rank: int, world: int, port: int, path: str, factory: str, megatron: dict[str, Any], folder: str
) -> Any:
    role = _role(rank, world, port, path, factory, megatron)
    saved = _train(role, 1)
    role.save(Path(folder))
    results = saved, _train(role, 2)
    parallel.stop()
    return results


def _load(
    rank: int, world: int, port: int, path: str, factory: str, megatron: dict[str, Any], folder: str
) -> Any:
    role = _role(rank, world, port, path, factory, megatron)
    role.load(Path(folder))
    results = {name: tensor.clone() for name, tensor in hf_tensors(role.built)}, _train(role, 2)
    parallel.stop()
    return results


@pytest.mark.parametrize(
    ("preset", "factory"),
    [
        (tiny_next, "rlcore_qwen.next:NextBridge"),
        (tiny_qwen3_5, "rlcore_qwen.qwen3_5:DenseBridge"),
    ],
)
def test_a_checkpoint_continues_on_other_layouts(
    preset: Callable[[Path], Path], factory: str, tmp_path: Path
) -> None:
    path, folder = str(preset(tmp_path / "m")), str(tmp_path / "checkpoint")
    Path(folder).mkdir()
    saved, continued = run_ranks(_save, 2, path, factory, TENSOR, folder)[0]
    for ranks, layout in ((2, PIPELINE), (1, {})):
        loaded, after = run_ranks(_load, ranks, path, factory, layout, folder)[0]
        assert loaded.keys() == saved.keys()
        for name, tensor in saved.items():
            assert torch.equal(loaded[name], tensor), (layout, name)
            torch.testing.assert_close(after[name], continued[name], atol=1e-4, rtol=0, msg=name)
            assert not torch.equal(after[name], tensor), name
