"""A layer for multi-token prediction, that of DeepSeek-V3: trained beside the policy, saved and published."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from megatron_ranks import QWEN, gradients_of, share_of, start
from safetensors.torch import save_file
from torch import Tensor
from transformers import DeepseekV3Config

from rlcore import ModelError, ModelSpec, OptimizerSettings, Part, SavedWeights, StepResult
from rlcore_megatron import convert
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.build import build_model
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.swapped import SwappedRole, load_host_weights
from rlcore_testing.checkpoints import make_checkpoint, tensors_of
from rlcore_testing.mtp import mtp_reference, publish_mtp
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_qwen3, policy_loss, random_batch
from rlcore_testing.trainer_ranks import weights_of

LAYERS = 2
BRIDGE = Part(name="deepseek_v3", factory="rlcore_deepseek.bridge:DeepseekBridge")
CONFIG = DeepseekV3Config(
    vocab_size=99,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=LAYERS + 1,
    num_attention_heads=4,
    num_key_value_heads=4,
    q_lora_rank=20,
    kv_lora_rank=16,
    qk_nope_head_dim=12,
    qk_rope_head_dim=8,
    v_head_dim=10,
    moe_intermediate_size=24,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=2,
    topk_group=1,
    first_k_dense_replace=1,
    max_position_embeddings=64,
    num_mtp_layers=0,
    pad_token_id=None,
)
UNSHARDED = {"use_distributed_optimizer": False}  # a rank then holds all gradients of its parameters
MTP, FACTOR = {"mtp_num_layers": 1}, 0.3
TRAINED = {**MTP, "mtp_loss_scaling_factor": FACTOR}
OF_CONFIG = "num_nextn_predict_layers"
OF_MTP = f"model.layers.{LAYERS}."

COPIES = {f"{OF_MTP}embed_tokens.weight", f"{OF_MTP}shared_head.head.weight"}
"""What published checkpoints repeat of the model."""


class Paths(NamedTuple):
    """`plain`: a model of one layer more, the last of which is in `mtp` that for multi-token prediction."""

    plain: Path
    mtp: Path


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    folder = tmp_path_factory.mktemp("models")
    make_checkpoint(folder / "plain", CONFIG)
    shutil.copytree(folder / "plain", folder / "mtp")
    publish_mtp(folder / "mtp")
    return Paths(folder / "plain", folder / "mtp")


Found = tuple[list[StepResult], dict[str, Tensor], dict[str, Tensor]]
"""What steps gave, and the weights and gradients after them."""


def _fit(
    rank: int,
    world: int,
    port: int,
    path: Path,
    fields: dict[str, Any],
    steps: int,
    tokens: int = 1000,
    lr: float = 1e-2,
    clip: float = 0.0,
) -> Found:
    """Steps over one batch, divided over the ranks."""
    start(rank, world, port, fields)
    settings = OptimizerSettings(lr=lr, adam_eps=1e-3, clip_grad=clip)
    role = Role(ModelSpec(path=str(path), bridge=BRIDGE, fields={**UNSHARDED, **fields}), settings)
    mine = share_of(random_batch(9))
    found = [role.train(mine, policy_loss, temperature=0.8, tokens_per_rank=tokens) for _ in range(steps)]
    result = found, weights_of(role), gradients_of(role)
    parallel.stop()
    return result


def _apart(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found - expected).abs().max()) / (1 + float(expected.abs().max()))


def test_loss_and_gradient_are_those_of_the_report(paths: Paths, tmp_path: Path) -> None:
    batch, folder = random_batch(9), tmp_path / "gradients"
    loss, gradients = mtp_reference(paths.plain, paths.mtp, batch, FACTOR, folder)
    [(steps, _, found)] = run_ranks(_fit, 1, paths.mtp, TRAINED, 1, 1000, 0.0)
    assert steps[0].extras["mtp_loss"] == pytest.approx(loss, rel=1e-5)
    names = {name for name in found if name.startswith(OF_MTP)}
    biases = {name for name in names if name.endswith("e_score_correction_bias")}
    assert names - biases == gradients.keys() - biases
    for name in gradients.keys() - biases:
        assert gradients[name].abs().max() > 1e-4, name
        assert _apart(found[name], gradients[name]) < 1e-5, name


def test_the_policy_is_the_same_to_the_last_bit_and_the_layer_learns(paths: Paths) -> None:
    """Also where gradients are clipped: by the policy's norm."""
    [(steps, weights, gradients)] = run_ranks(_fit, 1, paths.mtp, TRAINED, 6, 1000, 1e-2, 1.0)
    [(alone, without, of_alone)] = run_ranks(_fit, 1, paths.mtp, {}, 6, 1000, 1e-2, 1.0)
    assert [replace(step, extras={}) for step in steps] == alone
    assert max(step.grad_norm for step in alone) > 1.0
    assert weights.keys() - without.keys() == {name for name in weights if name.startswith(OF_MTP)}
    for name, tensor in without.items():
        assert torch.equal(weights[name], tensor), name
        assert torch.equal(gradients[name], of_alone[name]), name
    losses = [step.extras["mtp_loss"] for step in steps]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("tokens", [40, 1])
def test_micro_batches_change_nothing(paths: Paths, tokens: int) -> None:
    whole, divided = (run_ranks(_fit, 1, paths.mtp, TRAINED, 2, size)[0] for size in (1000, tokens))
    _assert_close(divided, whole)


RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
PP2 = {"pipeline_model_parallel_size": 2}


@pytest.mark.full
@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (2, TP2 | RECOMPUTED),
        (2, PP2),
        (1, RECOMPUTED),
        (1, {"overlap_grad_reduce": True}),
        (2, {}),
        (2, TP2),
        (2, {"expert_model_parallel_size": 2}),
        (2, {"context_parallel_size": 2}),
    ],
)
def test_layouts_agree_with_one_rank(paths: Paths, ranks: int, layout: dict[str, Any]) -> None:
    [alone] = run_ranks(_fit, 1, paths.mtp, TRAINED, 2, 40)
    found = run_ranks(_fit, ranks, paths.mtp, TRAINED | layout, 2, 40)[-1]
    _assert_close(found, alone)


def _assert_close(found: Found, expected: Found) -> None:
    for step, other in zip(found[0], expected[0], strict=True):
        assert step.extras["mtp_loss"] == pytest.approx(other.extras["mtp_loss"], rel=1e-5)
        assert step.loss == pytest.approx(other.loss, rel=1e-5)
        assert step.grad_norm == pytest.approx(other.grad_norm, rel=1e-4)
    for name, tensor in expected[1].items():
        assert _apart(found[1][name], tensor) < 1e-4, name


def test_it_is_published_and_converted_as_it_was_read(paths: Paths, tmp_path: Path) -> None:
    """Also of a checkpoint: `rlcore convert` both ways, and the run's own."""
    source = tensors_of(paths.mtp)
    published = run_ranks(_fit, 1, paths.mtp, TRAINED, 0)[0][1]
    (tmp_path / "in").mkdir()
    shutil.copytree(paths.mtp, tmp_path / "in" / "mtp")
    run_ranks("rlcore_megatron.testing.bridge_ranks:save_again", 1, BRIDGE, tmp_path / "in", tmp_path / "out")
    assert published.keys() == source.keys() - COPIES
    assert tensors_of(tmp_path / "out" / "mtp").keys() == source.keys()
    for found in (published, tensors_of(tmp_path / "out" / "mtp")):
        for name, tensor in found.items():
            assert torch.equal(source[name], tensor), name
    assert json.loads((tmp_path / "out" / "mtp" / "config.json").read_text())[OF_CONFIG] == 1


def _saved(rank: int, world: int, port: int, path: Path, folder: Path) -> list[StepResult]:
    """Two steps, which `_resumed` repeats, of a role that was saved after one."""
    role = _role(port, path)
    _step(role, 0)
    role.save(folder)
    found = [_step(role, seed) for seed in (1, 2)]
    parallel.stop()
    return found


def _resumed(rank: int, world: int, port: int, path: Path, folder: Path) -> list[StepResult]:
    role = _role(port, path)
    role.load(folder)
    found = [_step(role, seed) for seed in (1, 2)]
    parallel.stop()
    return found


def _role(port: int, path: Path) -> Role:
    parallel.start(0, 1, "127.0.0.1", port, timeout=60.0)
    return Role(ModelSpec(path=str(path), bridge=BRIDGE, fields=TRAINED), OptimizerSettings(lr=1e-2))


def _step(role: Role, seed: int) -> StepResult:
    return role.train(random_batch(6, seed), policy_loss, temperature=1.0, tokens_per_rank=40)


def test_a_resumed_role_goes_on_bit_by_bit(paths: Paths, tmp_path: Path) -> None:
    expected = run_ranks(_saved, 1, paths.mtp, tmp_path / "saved")
    assert run_ranks(_resumed, 1, paths.mtp, tmp_path / "saved") == expected
    out = tmp_path / "hf"
    run_ranks(_converted, 1, paths.mtp, tmp_path / "saved", out)
    assert tensors_of(out).keys() == tensors_of(paths.mtp).keys()


def _converted(rank: int, world: int, port: int, path: Path, folder: Path, out: Path) -> None:
    spec = ModelSpec(path=str(path), bridge=BRIDGE)  # as of a run's folder, which says nothing of the layer
    convert.to_hf(SavedWeights(spec=spec, folder=folder), out, lambda *_: None)


def _frozen_beside(rank: int, world: int, port: int, path: Path) -> tuple[int, list[Tensor]]:
    """Parameters of a reference, and log-probs of policy, reference and a swapped one, then and later."""
    policy = _role(port, path)
    spec = ModelSpec(path=str(path), bridge=BRIDGE, fields=TRAINED)
    reference, swapped = Role(spec, None), SwappedRole(policy, load_host_weights(spec))
    batch = random_batch(6)

    def log_probs(role: Role | SwappedRole) -> Tensor:
        return role.forward(batch, temperature=1.0, tokens_per_rank=40)["log_probs"]

    found = [log_probs(policy)]
    _step(policy, 0)
    found += [log_probs(reference), log_probs(swapped)]
    for role in (reference, swapped):
        role.copy_weights(policy)
    found += [log_probs(reference), log_probs(swapped), log_probs(policy)]
    count = sum(1 for chunk in reference.built.chunks for _ in chunk.parameters())
    parallel.stop()
    return count, found


def test_a_reference_has_no_such_layer(paths: Paths) -> None:
    count, (first, resident, swapped, *followed) = run_ranks(_frozen_beside, 1, paths.mtp)[0]
    assert _apart(resident, first) < 1e-6
    assert torch.equal(swapped, first)
    assert _apart(followed[2], first) > 1e-3
    assert _apart(followed[0], followed[2]) < 1e-6
    assert torch.equal(followed[1], followed[2])
    assert count == run_ranks(_parameters, 1, paths.mtp)[0]


def _parameters(rank: int, world: int, port: int, path: Path) -> int:
    parallel.start(0, 1, "127.0.0.1", port, timeout=60.0)
    role = Role(ModelSpec(path=str(path), bridge=BRIDGE), None)
    parallel.stop()
    return sum(1 for chunk in role.built.chunks for _ in chunk.parameters())


def test_a_loss_that_is_not_finite_changes_nothing(paths: Paths, tmp_path: Path) -> None:
    """The gradient norm is the policy's, and would not tell."""
    broken = shutil.copytree(paths.mtp, tmp_path / "broken")
    tensors = tensors_of(broken)
    tensors[f"{OF_MTP}enorm.weight"][:] = 3e38  # finite, but not what comes of it
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    [(steps, weights, _)] = run_ranks(_fit, 1, broken, TRAINED, 1)
    assert not steps[0].finite
    assert math.isfinite(steps[0].grad_norm)
    assert torch.equal(weights["lm_head.weight"], tensors["lm_head.weight"])


def test_a_gradient_of_the_layer_that_is_not_finite_changes_nothing(paths: Paths) -> None:
    """Losses and the policy's norm are finite, and only the last of two stages has the layer."""
    overflows = {**MTP, "mtp_loss_scaling_factor": 1e39, **PP2}
    weights = tensors_of(paths.mtp)
    for [step], found, _ in run_ranks(_fit, 2, paths.mtp, overflows, 1):
        assert not step.finite
        assert math.isfinite(step.loss + step.grad_norm + step.extras["mtp_loss"])
        for name in ("lm_head.weight", f"{OF_MTP}eh_proj.weight"):
            assert torch.equal(found[name], weights[name]), name


def test_a_bridge_without_the_layer_is_refused(tmp_path: Path) -> None:
    make_qwen3(tmp_path, num_nextn_predict_layers=1)
    [said] = run_ranks(_refused, 1, tmp_path)
    assert "the bridge of 'qwen3' has no layer for multi-token prediction" in said


def _refused(rank: int, world: int, port: int, path: Path) -> str:
    parallel.start(0, 1, "127.0.0.1", port, timeout=60.0)
    with pytest.raises(ModelError) as caught:
        build_model(ModelSpec(path=str(path), bridge=QWEN, fields=MTP))
    parallel.stop()
    return str(caught.value)
