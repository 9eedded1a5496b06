"""The joint norms, which tensor-parallel ranks share, in a checkpoint that is read under another layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import MiniMaxM2Config

from rlcore import ModelSpec, OptimizerSettings, Part
from rlcore_megatron.fields import split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_testing.checkpoints import make_checkpoint
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import policy_loss, random_batch

CUT = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
TINY: dict[str, Any] = {
    **{"vocab_size": 99, "hidden_size": 48, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 12},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    **{"eos_token_id": 1, "bos_token_id": None, "max_position_embeddings": 128},
}


def step(rank: int, world: int, port: int, path: str, folder: Path, megatron: dict[str, Any]) -> Any:
    """The weights after a step, which `folder` then has; or of `folder`, with the next step's norm."""
    parallel.start(rank, world, "127.0.0.1", port, timeout=60.0, **split(megatron).layout)
    part = Part(name="minimax_m2", factory="rlcore_minimax.bridge:MiniMaxBridge")
    role = Role(ModelSpec(path=path, bridge=part, fields=megatron), OptimizerSettings(lr=1e-2))
    is_there = folder.exists()
    if is_there:
        role.load(folder)
    else:
        role.train(random_batch(8, 0), policy_loss, temperature=1.0, tokens_per_rank=64)
        role.save(folder)
    weights = {name: tensor.numpy().copy() for name, tensor in hf_tensors(role.built)}
    norm = role.train(random_batch(8, 1), policy_loss, temperature=1.0, tokens_per_rank=64).grad_norm
    parallel.stop()
    return weights, norm


@pytest.mark.full
def test_a_checkpoint_of_two_ranks_is_read_by_one(tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "saved"
    make_checkpoint(model, MiniMaxM2Config(**TINY))
    expected, norm = run_ranks(step, 2, str(model), folder, CUT)[0]
    found, again = run_ranks(step, 1, str(model), folder, {})[0]
    moved = [name for name, values in expected.items() if "q_norm" in name and not np.all(values == 1)]
    assert len(moved) == TINY["num_hidden_layers"], "their weights have learned"
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    assert again == pytest.approx(norm, rel=1e-4)
