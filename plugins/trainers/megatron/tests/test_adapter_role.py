"""A role with an adapter: saved, loaded under its layout and another, with a base that never changes."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader

from rlcore import AdapterSpec, ModelSpec, OptimizerSettings, Part
from rlcore.rollout.batch import even_shares
from rlcore_megatron.fields import check_fields, split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import adapter_tensors, hf_tensors
from rlcore_qwen.config import QwenConfig
from rlcore_testing.checkpoints import tensors_of
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_qwen3, policy_loss, random_batch
from rlcore_toolkit import read_adapter, write_merged

SETTINGS = OptimizerSettings(lr=1e-2, adam_eps=1e-4, weight_decay=0.1)
SPEC = AdapterSpec(rank=4, alpha=8, dropout=0.0, seed=3)
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "TP2 SP": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    "PP2": (2, {"pipeline_model_parallel_size": 2}),
    "DP2": (2, {}),
    "recompute": (1, {"recompute_granularity": "full"}),
}


def _trained(
    rank: int, world: int, port: int, path: str, fields: dict[str, Any], source: str, out: str
) -> dict[str, Any]:
    """Two steps, of which the second follows `source` where it is given; what is saved goes to `out`."""
    fields = check_fields(fields)
    parallel.start(rank, world, "127.0.0.1", port, **split(fields).layout)
    bridge = Part(name="qwen", factory="rlcore_qwen.bridge:QwenBridge", config=QwenConfig())
    role = Role(ModelSpec(path=path, bridge=bridge, fields=fields), SETTINGS, adapter=SPEC)
    whole = random_batch(8, 99)
    first = role.forward(whole, temperature=1.0, tokens_per_rank=40)["log_probs"]
    norms = []
    for seed in (0, 1):
        if seed and source:
            role.load(Path(source))
        batch = random_batch(8, seed)
        mine = even_shares(batch.lengths.tolist(), parallel.data_size())[parallel.data_rank()]
        step = role.train(batch.select(mine), policy_loss, temperature=1.0, tokens_per_rank=40)
        norms.append(step.grad_norm)
        if not seed and out:
            role.save(Path(out))
    base = role.base.forward(whole, temperature=1.0, tokens_per_rank=40)["log_probs"]
    moved = role.forward(whole, temperature=1.0, tokens_per_rank=40)["log_probs"]
    result = {
        "norms": norms,
        "adapter": adapter_tensors(role.built),
        "weights": {name: tensor.clone() for name, tensor in hf_tensors(role.built)},
        "base": float((base - first).abs().max()),
        "moved": float((moved - first).abs().max()),
        "trained": sum(
            parameter.numel()
            for chunk in role.built.chunks
            for parameter in chunk.parameters()
            if parameter.requires_grad
        ),
    }
    parallel.stop()
    return result


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """The model, the checkpoint after one step on one rank, and what the run came to."""
    root = tmp_path_factory.mktemp("adapter")
    model = Path(make_qwen3(root / "model"))
    [result] = run_ranks(_trained, 1, str(model), {}, "", str(root / "saved"))
    return model, root / "saved", result


def test_the_base_stays_and_a_checkpoint_holds_the_adapter_alone(
    saved: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    model, folder, result = saved
    assert result["base"] == 0
    assert result["moved"] > 1e-3
    pairs = read_adapter(folder)
    count = sum(tensor.numel() for pair in pairs.values() for tensor in pair)
    assert result["trained"] == count
    names = FileSystemReader(str(folder)).read_metadata().state_dict_metadata
    assert names
    assert all(".lora_" in name for name in names), "weights and moments"
    write_merged(model, folder, tmp_path / "out", "fp32", lambda done, total: None)
    assert tensors_of(tmp_path / "out").keys() == result["weights"].keys()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_goes_on_from_a_checkpoint_under_another_layout(
    saved: tuple[Path, Path, dict[str, Any]], layout: str
) -> None:
    model, folder, expected = saved
    ranks, fields = LAYOUTS[layout]
    result = run_ranks(_trained, ranks, str(model), fields, str(folder), "")[-1]
    is_same = layout == "one rank"
    for norm, other in zip(result["norms"], expected["norms"], strict=True):
        assert norm == other if is_same else math.isclose(norm, other, rel_tol=1e-4)
    for name, tensor in expected["adapter"].items():
        found = result["adapter"][name]
        assert torch.equal(found, tensor) if is_same else torch.allclose(found, tensor, atol=1e-5), name
    for name, tensor in expected["weights"].items():
        assert torch.allclose(result["weights"][name], tensor, atol=1e-5), name
