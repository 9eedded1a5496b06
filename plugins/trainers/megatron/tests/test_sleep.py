"""A role that sleeps: the device's memory is empty meanwhile, and nothing differs afterwards by a bit."""

import gc
from typing import Any

import pytest
from megatron_ranks import QWEN
from torch import Tensor

from rlcore import Config, ModelSpec, OptimizerSettings, Part, SleepLevel
from rlcore_megatron.fields import split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_experts, make_qwen3, policy_loss, random_batch

SETTINGS = OptimizerSettings(lr=1e-2, adam_eps=1e-4, clip_grad=0.5, lr_schedule="linear", total_steps=4)
TENSOR = {"tensor_model_parallel_size": 2}
GLM = Part(name="glm_moe", factory="rlcore_glm.moe:GlmMoeBridge", config=Config())
LEVELS: tuple[SleepLevel, ...] = ("optimizer", "all")


def _bytes_alive(role: Role | None = None) -> int:
    """Of the storages of all tensors in this process, but for the copies of `role` while it sleeps."""
    gc.collect()
    kept = [*role._away._optimizer._kept, *role._away._weights._kept] if role else []
    copies = {copy.untyped_storage().data_ptr() for *_, copy in kept}
    tensors = [one for one in gc.get_objects() if isinstance(one, Tensor)]
    alive = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(size for place, size in alive.items() if place not in copies)


def _step(role: Role, seed: int) -> Any:
    mine = random_batch(6, seed + parallel.data_rank())
    return role.train(mine, policy_loss, temperature=0.8, tokens_per_rank=64)


def _run(
    rank: int,
    world: int,
    port: int,
    path: str,
    part: Part,
    megatron: dict[str, Any],
    dtype: str,
    sleeps: bool,
) -> Any:
    parallel.start(rank, world, "127.0.0.1", port, **split(megatron).layout)
    empty = _bytes_alive()
    role = Role(ModelSpec(path=path, bridge=part, fields=megatron, dtype=dtype), SETTINGS)
    results: list[Any] = [_step(role, 0)]
    figures: dict[str, tuple[int, int, int]] = {}
    for seed, what in enumerate(LEVELS, start=1):
        if sleeps:
            awake = _bytes_alive(role) - empty
            freed = role.sleep(what)
            figures[what] = awake, _bytes_alive(role) - empty, freed
            role.wake()
            assert _bytes_alive(role) - empty <= awake
        results.append(_step(role, seed))
    weights = {name: tensor.float().numpy().copy() for name, tensor in hf_tensors(role.built)}
    parallel.stop()
    return results, weights, figures


@pytest.mark.grid
@pytest.mark.parametrize(
    ("ranks", "megatron", "dtype"),
    [
        (4, TENSOR, "bf16"),
        (2, {"overlap_grad_reduce": True, "overlap_param_gather": True}, "fp32"),
        (2, {}, "fp32"),
        (2, {"use_distributed_optimizer": False}, "bf16"),
        (1, {"use_precision_aware_optimizer": True}, "bf16"),
        (2, {"expert_model_parallel_size": 2}, "bf16"),
    ],
    ids=str,
)
def test_what_follows_a_sleep_is_the_same(
    ranks: int, megatron: dict[str, Any], dtype: str, tmp_path: Any
) -> None:
    has_experts = "expert_model_parallel_size" in megatron
    path = str((make_experts if has_experts else make_qwen3)(tmp_path / "model"))
    part = GLM if has_experts else QWEN
    slept, awake = (run_ranks(_run, ranks, path, part, megatron, dtype, sleeps) for sleeps in (True, False))
    for (results, weights, figures), (wanted, wanted_weights, _) in zip(slept, awake, strict=True):
        assert results == wanted
        assert all((weights[name] == wanted_weights[name]).all() for name in wanted_weights)
        for before, left, freed in figures.values():
            assert before - left >= freed > 0
        before, left, _ = figures["all"]
        assert left < before / 50, "what does not sleep is no part of the model"
        assert figures["optimizer"][1] > left
