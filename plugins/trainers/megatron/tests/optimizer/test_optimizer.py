"""The optimizers: where states are kept changes no number; each kind moves the weights by its rule."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from megatron_ranks import QWEN, share_of

from rlcore import ModelSpec, OptimizerSettings, Part
from rlcore_megatron.fields import check_fields, split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.optimizer.muon import QUINTIC, Muon, MuonRule
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.weights import hf_tensors
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_experts, policy_loss, random_batch

SETTINGS = OptimizerSettings(lr=1e-2, lr_schedule="cosine", warmup_steps=5, total_steps=60, weight_decay=0.1)
STEPS = 50
OFFLOAD = {"optimizer_cpu_offload": True}
OVERLAPPED = {**OFFLOAD, "overlap_cpu_optimizer_d2h_h2d": True, "use_precision_aware_optimizer": True}
HALF = {**OFFLOAD, "optimizer_offload_fraction": 0.5, "pin_cpu_grads": False, "pin_cpu_params": False}
NARROW = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}


def _role(path: str, dtype: str, megatron: dict[str, Any]) -> Role:
    return Role(ModelSpec(path=path, bridge=QWEN, fields=megatron, dtype=dtype), SETTINGS)


def _train(role: Role, seeds: range) -> list[float]:
    norms = []
    for seed in seeds:
        batch = random_batch(4, seed)
        step = role.train(share_of(batch), policy_loss, temperature=1.0, tokens_per_rank=60)
        norms.append(step.grad_norm)
    return norms


def _weights(role: Role) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.float().numpy().copy() for name, tensor in hf_tensors(role.built)}


def _start(rank: int, world: int, port: int) -> None:
    parallel.start(rank, world, "127.0.0.1", port, timeout=60.0)


def _trained(
    rank: int, world: int, port: int, path: str, dtype: str, steps: int, runs: list[dict[str, Any]]
) -> list[Any]:
    """Norms, weights and the bytes of the states that lie on the host, of each of `runs`."""
    _start(rank, world, port)
    found = []
    for megatron in runs:
        role = _role(path, dtype, check_fields(megatron))
        norms = _train(role, range(steps))
        found.append((norms, _weights(role), _hosted(role)))
    parallel.stop()
    return found


def _hosted(role: Role) -> float:
    """The share of the weights whose states a host keeps."""
    [inner] = [part.optimizer for part in role.optimizer.chained_optimizers]
    hosted: set[Any] = getattr(inner, "_hosted", set())
    every = [param for group in inner.param_groups for param in group["params"]]
    return float(sum(param.numel() for param in hosted) / sum(param.numel() for param in every))


def _same(found: Any, expected: Any) -> None:
    assert found[0] == expected[0]
    for name, array in expected[1].items():
        assert np.array_equal(found[1][name], array), name


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "world"), [("fp32", 1), ("bf16", 2)])
def test_fifty_steps_are_the_same_wherever_the_states_are(model: str, dtype: str, world: int) -> None:
    runs = [{}, OFFLOAD, OVERLAPPED, HALF]
    for plain, offloaded, overlapped, half in run_ranks(_trained, world, model, dtype, STEPS, runs):
        for found in (offloaded, overlapped, half):
            _same(found, plain)
        assert [plain[2], offloaded[2], overlapped[2]] == [0.0, 1.0, 1.0]
        assert 0.5 <= half[2] < 1.0


def _continued(
    rank: int, world: int, port: int, path: str, folder: str, runs: list[dict[str, Any]]
) -> list[Any]:
    """What follows a checkpoint that the first of `runs` wrote after two steps, under each of them."""
    _start(rank, world, port)
    role = _role(path, "bf16", check_fields(runs[0]))
    role.save(Path(folder) / "unstepped")
    _train(role, range(2))
    role.save(Path(folder) / "saved")
    found = [(_train(role, range(2, 4)), _weights(role))]
    for megatron in runs:
        role = _role(path, "bf16", check_fields(megatron))
        _train(role, range(7, 8))  # what was there before must not show through
        role.load(Path(folder) / "saved")
        found.append((_train(role, range(2, 4)), _weights(role)))
    role.load(Path(folder) / "unstepped")
    assert role.steps == 0
    parallel.stop()
    return found


def test_a_checkpoint_goes_on_bit_by_bit_with_and_without_offload(model: str, tmp_path: Path) -> None:
    expected, *others = run_ranks(_continued, 1, model, str(tmp_path), [OVERLAPPED, {}, HALF])[0]
    for found in others:
        _same(found, expected)


@pytest.mark.parametrize(
    "megatron",
    [NARROW | OFFLOAD, {"optimizer": "sgd", "sgd_momentum": "0.5"}, {"optimizer": "muon"}],
    ids=["narrow", "sgd", "muon"],
)
def test_other_states_go_on_bit_by_bit(model: str, tmp_path: Path, megatron: dict[str, Any]) -> None:
    expected, found = run_ranks(_continued, 1, model, str(tmp_path), [megatron])[0]
    _same(found, expected)


def test_narrow_moments_stay_near_and_sgd_follows_its_rule(model: str) -> None:
    sgd = {"optimizer": "sgd", "sgd_momentum": 0.0}
    start, plain, narrow, moved = (
        run_ranks(_trained, 1, model, "fp32", 0, [{}])[0]
        + run_ranks(_trained, 1, model, "fp32", 1, [{}, NARROW, sgd])[0]
    )
    norm = moved[0][0]
    assert norm > SETTINGS.clip_grad, "clipped to a norm of 1"
    lr, decay = SETTINGS.lr / SETTINGS.warmup_steps, SETTINGS.weight_decay
    change = 0.0
    for name, before in start[1].items():
        assert np.abs(narrow[1][name] - plain[1][name]).max() < 1e-4, name
        gradient = (before - moved[1][name]) / lr - (decay * before if before.ndim > 1 else 0.0)
        change += float(np.square(gradient.astype(np.float64)).sum())
    assert change**0.5 == pytest.approx(SETTINGS.clip_grad, rel=1e-3)


def _orthogonal(matrix: np.ndarray[Any, Any], steps: int, scale: float) -> np.ndarray[Any, Any]:
    """Newton-Schulz in fp64 by singular values, which each step moves alone; times `scale`."""
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    values /= np.sqrt(np.square(values).sum())
    for a, b, c in (QUINTIC * 2)[:steps]:
        values = a * values + b * values**3 + c * values**5
    result: np.ndarray[Any, Any] = scale * (u * values) @ v
    return result


MUON: dict[str, Any] = {
    "muon_momentum": 0.9,
    "muon_use_nesterov": True,
    "muon_scale_mode": "unit_rms_norm",
    "muon_fp32_matmul_prec": "highest",
    "muon_num_ns_steps": 7,
    "muon_extra_scale_factor": 0.2,
}


def test_muon_follows_its_rule() -> None:
    """Of a matrix, of one of queries, keys and values, and of two experts: eight steps in fp64."""
    from megatron.core.optimizer import OptimizerConfig

    heads = SimpleNamespace(
        kv_channels=3, num_attention_heads=4, num_query_groups=2, attention_output_gate=False
    )
    rule = MuonRule.of(OptimizerConfig(**MUON), heads)
    assert MuonRule.of(OptimizerConfig(muon_split_qkv=False), heads).qkv is None
    random = np.random.default_rng(0)
    shapes = {"plain": (5, 8), "qkv": (2 * 12, 8), "experts": (2, 9, 4)}
    masters = {name: random.normal(size=shape) for name, shape in shapes.items()}
    params = {name: torch.nn.Parameter(torch.tensor(value).float()) for name, value in masters.items()}
    params["qkv"].is_qkv = True  # type: ignore[attr-defined]  # megatron's mark
    optimizer = Muon(list(params.values()), rule=rule, lr=0.1, weight_decay=0.5, momentum=0.9)
    momenta = {name: np.zeros(shape) for name, shape in shapes.items()}
    for param in params.values():
        optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param)
    # rows of the queries, keys and values of both groups
    rows: list[Any] = [[*range(6), *range(12, 18)], [6, 7, 8, 18, 19, 20], [9, 10, 11, 21, 22, 23]]
    places: dict[str, list[Any]] = {"plain": [slice(None)], "qkv": rows, "experts": [0, 1]}
    for _ in range(8):
        for name, param in params.items():
            gradient = random.normal(size=shapes[name])
            param.grad = torch.tensor(gradient).float()
            momenta[name] = 0.9 * momenta[name] + 0.1 * param.grad.double().numpy()
            towards = 0.1 * param.grad.double().numpy() + 0.9 * momenta[name]
            update = np.zeros(shapes[name])
            for place in places[name]:
                part = towards[place]
                update[place] = _orthogonal(part, 7, 0.2 * (part.shape[0] / part.shape[1]) ** 0.5)
            masters[name] = masters[name] * (1 - 0.1 * 0.5) - 0.1 * update
        optimizer.step()
    for name, param in params.items():
        np.testing.assert_allclose(param.detach().numpy(), masters[name], atol=2e-5, err_msg=name)


def _by_muon(
    rank: int, world: int, port: int, path: str, folder: str, layout: dict[str, Any], saves: bool
) -> dict[str, Any]:
    """Three steps of a model with experts: its weights before and after.

    The second step goes on from a checkpoint in `folder`, which the rank that `saves` writes.
    """
    fields = check_fields({**MUON, "optimizer": "muon", **layout})
    parallel.start(rank, world, "127.0.0.1", port, timeout=60.0, **split(fields).layout)
    part = Part(name="glm4_moe", factory="rlcore_glm.moe:GlmMoeBridge")
    role = Role(ModelSpec(path=path, bridge=part, fields=fields), SETTINGS)
    before = _weights(role)
    _train(role, range(1))
    if saves:
        role.save(Path(folder))
    else:
        role.load(Path(folder))
    _train(role, range(1, 3))
    found = {"before": before, "after": _weights(role)}
    parallel.stop()
    return found


@pytest.mark.full
def test_muon_moves_each_matrix_in_the_same_way_under_every_layout(tmp_path: Path) -> None:
    path = str(make_experts(tmp_path / "model"))
    folder = str(tmp_path / "saved")
    [alone] = run_ranks(_by_muon, 1, path, folder, {}, True)
    tensor = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 2}
    for layout in (tensor, {"pipeline_model_parallel_size": 2}, {"expert_model_parallel_size": 2}):
        for found in run_ranks(_by_muon, 2, path, folder, layout, False):
            for name, array in alone["after"].items():
                np.testing.assert_allclose(found["after"][name], array, atol=2e-5, err_msg=f"{layout} {name}")
    norms = {name: np.linalg.norm(alone["after"][name] - array) for name, array in alone["before"].items()}
    assert all(norm > 0 for name, norm in norms.items() if not name.endswith("bias")), norms
