"""Indexers in training: frozen or taught, one of them for several layers, the same under every layout."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_ranks import share_of
from transformers import AutoModelForCausalLM, GlmMoeDsaConfig

from rlcore import ModelSpec, OptimizerSettings, Part
from rlcore_machine import HeldPort
from rlcore_megatron.fields import RECOMPUTE, check_fields, split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_testing.checkpoints import randomize
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import policy_loss, random_batch

BRIDGE = Part(name="glm5", factory="rlcore_glm.sparse:GlmSparseBridge")
CONFIG = GlmMoeDsaConfig(
    vocab_size=99,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=4,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=8,
    v_head_dim=8,
    moe_intermediate_size=16,
    n_routed_experts=4,
    num_experts_per_tok=2,
    first_k_dense_replace=1,
    index_topk=3,
    index_n_heads=12,
    index_head_dim=12,
    indexer_types=["full", "shared", "shared", "full"],
    max_position_embeddings=64,
    pad_token_id=None,
)
# eps well above the noise of tiny gradients; no clipping, whose norm is that of all parameters
SETTINGS = OptimizerSettings(lr=1e-3, adam_eps=1e-4, weight_decay=0.1, clip_grad=1e9)
TAUGHT = {"dsa_indexer_loss_coeff": 0.5}
ALONE: Mapping[str, Mapping[str, Any]] = {
    "frozen": {},
    "taught": TAUGHT,
    "recomputed": {**TAUGHT, **RECOMPUTE},
    "core": {**TAUGHT, "recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
}
DIVIDED: Mapping[str, Mapping[str, Any]] = {
    "sequence": {**TAUGHT, "tensor_model_parallel_size": 2, "sequence_parallel": True},
    "context": {**TAUGHT, "context_parallel_size": 2},
    "data": TAUGHT,
    "pipeline": {
        **TAUGHT,
        "pipeline_model_parallel_size": 2,
        "num_layers_in_last_pipeline_stage": 1,
    },
}


def _steps(
    rank: int, world: int, port: int, path: str, runs: Sequence[Mapping[str, Any]], more: Sequence[int]
) -> list[tuple[list[float], list[dict[str, torch.Tensor]]]]:
    """For each of `runs`: the indexers' divergence in each of two steps, and the weights behind each."""
    found = []
    for fields, number in zip(runs, (port, *more), strict=True):
        parallel.start(rank, world, "127.0.0.1", number, **split(check_fields(fields)).layout)
        role = Role(ModelSpec(path=path, bridge=BRIDGE, fields=fields), SETTINGS)
        divergences, weights = [], []
        for batch in (random_batch(9), random_batch(3, seed=5)):
            share = share_of(batch)
            result = role.train(share, policy_loss, temperature=0.8, tokens_per_rank=30)
            divergences.append(result.extras.get("indexer_divergence", 0.0))
            weights.append({name: tensor.clone() for name, tensor in hf_tensors(role.built)})
        found.append((divergences, weights))
        parallel.stop()
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    model: Any = AutoModelForCausalLM.from_config(CONFIG, dtype=torch.float32)
    randomize(model)
    model.save_pretrained(folder)
    return folder


def _run(path: Path, world: int, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    with contextlib.ExitStack() as held:
        ports = [held.enter_context(HeldPort()).number for _ in list(runs)[1:]]
        return dict(
            zip(runs, run_ranks(_steps, world, str(path), list(runs.values()), ports)[0], strict=True)
        )


@pytest.fixture(scope="module")
def alone(path: Path) -> dict[str, Any]:
    return _run(path, 1, ALONE)


def test_a_frozen_indexer_stays_and_a_taught_one_learns_alone(alone: dict[str, Any]) -> None:
    first, last = alone["frozen"][1]
    taught = alone["taught"][1][0]
    indexers = {name for name in first if ".indexer." in name}
    assert len(indexers) == 2 * 5
    for name in first:
        if name in indexers:
            assert torch.equal(first[name], last[name]), name
            assert not torch.equal(first[name], taught[name]), name
        else:
            assert torch.equal(first[name], taught[name]), name
            assert not torch.equal(first[name], last[name]) or "bias" in name, name
    assert alone["frozen"][0] == [0.0, 0.0]
    assert min(alone["taught"][0]) > 0.01


def test_layouts_and_recomputation_teach_the_same(path: Path, alone: dict[str, Any]) -> None:
    divergences, weights = alone["taught"]
    others = {"recomputed": alone["recomputed"], "core": alone["core"], **_run(path, 2, DIVIDED)}
    for layout, (found, divided) in others.items():
        assert found == pytest.approx(divergences, rel=1e-5), layout
        torch.testing.assert_close(divided[-1], weights[-1], rtol=0, atol=2e-5)
