"""Roles with adapters over one base: saved, loaded under their layout and another; the base never changes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_ranks import QWEN, share_of
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader

from rlcore import AdapterSpec, ModelKind, ModelSpec, OptimizerSettings, RoleSpec
from rlcore_megatron.fields import check_fields, split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import adapter_tensors, hf_tensors
from rlcore_testing.checkpoints import tensors_of
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_qwen3, policy_loss, random_batch
from rlcore_toolkit import read_adapter, write_merged

SETTINGS = OptimizerSettings(lr=1e-2, adam_eps=1e-4, weight_decay=0.1)
MINE = AdapterSpec(rank=4, alpha=8, seed=3)
OTHER = AdapterSpec(rank=3, alpha=9, targets=("model.layers.1.self_attn.v_proj", "up_proj"), seed=4)
LAST = AdapterSpec(rank=2, alpha=4, targets=(r".*\.3\..*",), seed=5)
POLICIES = (MINE, OTHER, LAST)
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "TP2 SP": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    "VPP2": (2, {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}),
    "PP2": (2, {"pipeline_model_parallel_size": 2}),
    "CP2": (2, {"context_parallel_size": 2}),
    "DP2": (2, {"overlap_grad_reduce": True, "overlap_param_gather": True}),
    "recompute": (1, {"recompute_granularity": "full"}),
}


def _trained(
    rank: int,
    world: int,
    port: int,
    path: str,
    fields: dict[str, Any],
    specs: Sequence[AdapterSpec],
    source: str,
    out: str,
) -> list[dict[str, Any]]:
    """Two steps of each policy, in turn; the second follows `source` where it is given.

    What they came to. What is saved after the first goes to `out`.
    """
    fields = check_fields(fields)
    parallel.start(rank, world, "127.0.0.1", port, **split(fields).layout)
    model = ModelSpec(path=path, bridge=QWEN, fields=fields)
    first, *more = specs
    role = Role(model, SETTINGS, adapter=first)
    roles = [role, *(role.further(_spec(model, adapter)) for adapter in more)]
    whole = random_batch(8, 99)

    def scores(scorer: Role) -> Tensor:
        return scorer.forward(whole, temperature=1.0, tokens_per_rank=40)["log_probs"]

    begun = [scores(role) for role in roles]
    norms: list[list[float]] = [[] for _ in roles]
    for seed in (0, 1):
        if seed and source:
            for number, role in enumerate(roles):
                role.load(Path(source, str(number)))
        for number, role in enumerate(roles):
            batch = random_batch(8, seed + 10 * specs[number].rank)
            step = role.train(share_of(batch), policy_loss, temperature=1.0, tokens_per_rank=40)
            norms[number].append(step.grad_norm)
        if not seed and out:
            for number, role in enumerate(roles):
                role.save(Path(out, str(number)))
    found = [
        {
            "norms": norms[number],
            "scores": scores(role),
            "weights": {name: tensor.clone() for name, tensor in hf_tensors(role.built)},
            "adapter": adapter_tensors(role.built),
            "base": float((scores(role.base) - begun[number]).abs().max()),
            "moved": float((scores(role) - begun[number]).abs().max()),
            "trained": sum(one.numel() for model in role.models for one in model.params_with_grad),
        }
        for number, role in enumerate(roles)
    ]
    parallel.stop()
    return found


def _spec(model: ModelSpec, adapter: AdapterSpec) -> RoleSpec:
    return RoleSpec(kind=ModelKind.POLICY, model=model, optimizer=SETTINGS, overlay=adapter)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[dict[str, Any]]]:
    """The model, the checkpoints after one step on one rank, and what the run came to."""
    root = tmp_path_factory.mktemp("adapter")
    model = Path(make_qwen3(root / "model", num_hidden_layers=4))
    [results] = run_ranks(_trained, 1, str(model), {}, POLICIES, "", str(root / "saved"))
    return model, root / "saved", results


def test_the_base_stays_and_a_checkpoint_holds_the_adapter_alone(
    saved: tuple[Path, Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    model, folder, results = saved
    for number, result in enumerate(results):
        assert result["base"] == 0
        assert result["moved"] > 1e-3
        pairs = read_adapter(folder / str(number))
        count = sum(tensor.numel() for pair in pairs.values() for tensor in pair)
        assert result["trained"] == count
        names = FileSystemReader(str(folder / str(number))).read_metadata().state_dict_metadata
        assert names
        assert all(".lora_" in name for name in names), "weights and moments"
    write_merged(model, folder / "0", tmp_path / "out", "fp32", lambda done, total: None)
    assert tensors_of(tmp_path / "out").keys() == results[0]["weights"].keys()


@pytest.mark.parametrize("number", range(len(POLICIES)))
def test_each_policy_trains_as_if_it_were_alone(
    number: int, saved: tuple[Path, Path, list[dict[str, Any]]]
) -> None:
    model, _, results = saved
    [[alone]] = run_ranks(_trained, 1, str(model), {}, [POLICIES[number]], "", "")
    assert alone["norms"] == results[number]["norms"]
    assert torch.equal(alone["scores"], results[number]["scores"])
    _compare(results[number]["adapter"], alone["adapter"], exactly=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_goes_on_from_a_checkpoint_under_another_layout(
    saved: tuple[Path, Path, list[dict[str, Any]]], layout: str
) -> None:
    model, folder, expected = saved
    ranks, fields = LAYOUTS[layout]
    results = run_ranks(_trained, ranks, str(model), fields, POLICIES, str(folder), "")[-1]
    is_same = layout == "one rank"
    for result, wanted in zip(results, expected, strict=True):
        assert result["base"] == 0
        for norm, other in zip(result["norms"], wanted["norms"], strict=True):
            assert norm == other if is_same else math.isclose(norm, other, rel_tol=1e-4)
        _compare(result["adapter"], wanted["adapter"], exactly=is_same)
        _compare(result["weights"], wanted["weights"], exactly=False)


def _dropped(rank: int, world: int, port: int, path: str) -> list[Tensor]:
    """Log-probs of a policy, twice, once it has trained with dropout and another policy has scored."""
    parallel.start(rank, world, "127.0.0.1", port)
    model, adapter = ModelSpec(path=path, bridge=QWEN), replace(MINE, dropout=0.5)
    role = Role(model, SETTINGS, adapter=adapter)
    other, batch = role.further(_spec(model, adapter)), random_batch(8)
    role.train(batch, policy_loss, temperature=1.0, tokens_per_rank=40)
    scores = [
        policy.forward(batch, temperature=1.0, tokens_per_rank=40)["log_probs"]
        for policy in (other, role, role)
    ]
    parallel.stop()
    return scores[1:]


def test_nothing_drops_out_of_a_policy_that_another_one_left_in_training(
    saved: tuple[Path, Path, list[dict[str, Any]]],
) -> None:
    [scores] = run_ranks(_dropped, 1, str(saved[0]))
    assert torch.equal(*scores)


def _batched_products(rank: int, world: int, port: int, path: str) -> int:
    parallel.start(rank, world, "127.0.0.1", port)
    role = Role(ModelSpec(path=path, bridge=QWEN), SETTINGS, adapter=MINE)
    with torch.profiler.profile() as profile:
        role.train(random_batch(8), policy_loss, temperature=1.0, tokens_per_rank=40)
    parallel.stop()
    return sum(event.count for event in profile.key_averages() if event.key == "aten::bmm")


def test_a_frozen_output_matrix_is_not_read_for_each_row(saved: tuple[Path, Path, list[Any]]) -> None:
    """Torch would multiply a transposed gradient row by row."""
    assert run_ranks(_batched_products, 1, str(saved[0])) == [0]


def _compare(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, exactly: bool) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        one = found[name]
        assert torch.equal(one, tensor) if exactly else torch.allclose(one, tensor, atol=1e-5), name
