"""One rank of a role against plain transformers and torch, on the same tokens."""

import math
from typing import Any

import pytest
import torch
from megatron_ranks import QWEN
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.errors import ConfigError, DataError
from rlcore.api.optimizer import OptimizerSettings
from rlcore.api.part import ModelSpec
from rlcore.api.trainer import LossResult, StepResult, TokenOutputs
from rlcore_megatron.fields import check_fields
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import policy_loss, random_batch, shuffled
from rlcore_testing.trainer_ranks import weights_of

TEMPERATURE = 0.8
# eps well above the noise of tiny gradients, whose sign Adam would otherwise blow up to a whole step
SETTINGS = OptimizerSettings(lr=1e-2, adam_eps=1e-4, clip_grad=0.5, weight_decay=0.1)


def _spec(path: str, dtype: str = "fp32", **megatron: Any) -> ModelSpec:
    return ModelSpec(path=path, bridge=QWEN, dtype=dtype, fields=megatron)


def _train(role: Role, batch: TrainBatch, budget: int = 40, **known: Any) -> StepResult:
    options: dict[str, Any] = {"entropy": True, "entropy_grad": True, **known}
    return role.train(
        batch, options.pop("loss", policy_loss), temperature=TEMPERATURE, tokens_per_rank=budget, **options
    )


def _hf_outputs(model: Any, batch: TrainBatch) -> TokenOutputs:
    log_probs, entropies = [], []
    for tokens, prompt in zip(batch.tokens.split(batch.lengths.tolist()), batch.prompt_lengths, strict=True):
        logits = model(input_ids=tokens[None]).logits[0, int(prompt) - 1 : -1]
        log_p = torch.log_softmax(logits / TEMPERATURE, -1)
        log_probs.append(log_p.gather(1, tokens[int(prompt) :, None])[:, 0])
        entropies.append(-(log_p.exp() * log_p).sum(-1))
    return TokenOutputs(log_probs=torch.cat(log_probs), entropy=torch.cat(entropies))


def _hf_step(path: str, batch: TrainBatch) -> tuple[TokenOutputs, float, float, dict[str, Tensor]]:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    outputs = _hf_outputs(model, batch)
    loss = policy_loss(outputs, batch).total
    loss.backward()
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.clip_grad))
    decayed = [p for p in model.parameters() if p.ndim > 1]
    groups = [
        {"params": decayed, "weight_decay": SETTINGS.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    torch.optim.AdamW(groups, lr=SETTINGS.lr, eps=SETTINGS.adam_eps).step()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    return outputs, float(loss), norm, weights


def _as_transformers(rank: int, world: int, port: int, path: str) -> bool:
    parallel.start(rank, world, "127.0.0.1", port)
    batch = random_batch(9)
    outputs, loss, norm, weights = _hf_step(path, batch)
    assert norm > 2 * SETTINGS.clip_grad, "clipping must take part"
    role = Role(_spec(path), SETTINGS)
    found = role.forward(batch, temperature=TEMPERATURE, tokens_per_rank=40, entropy=True)
    assert found["log_probs"].dtype == torch.float32
    assert not found["log_probs"].requires_grad
    torch.testing.assert_close(found["log_probs"], outputs.log_probs.detach(), atol=1e-5, rtol=0)
    assert outputs.entropy is not None
    torch.testing.assert_close(found["entropy"], outputs.entropy.detach(), atol=1e-5, rtol=0)
    assert list(role.forward(batch, temperature=1.0, tokens_per_rank=40)) == ["log_probs"]
    step = _train(role, batch)
    assert step.finite
    assert step.lr == SETTINGS.lr
    assert role.steps == 1
    assert step.loss == pytest.approx(loss, rel=1e-5)
    assert step.grad_norm == pytest.approx(norm, rel=1e-5)
    assert step.metrics["tokens"] == float((batch.per_token["loss_mask"] > 0).sum())
    torch.testing.assert_close(weights_of(role), weights, atol=2e-6, rtol=0)
    parallel.stop()
    return True


def test_a_step_equals_transformers_and_torch(model: str) -> None:
    assert run_ranks(_as_transformers, 1, model) == [True]


def _steps_agree(rank: int, world: int, port: int, path: str) -> bool:
    parallel.start(rank, world, "127.0.0.1", port)
    batch = random_batch(9)
    still = OptimizerSettings(lr=0.0, clip_grad=0.0)
    role = Role(_spec(path), still)
    whole = _train(role, batch, budget=10_000)
    scores = role.forward(batch, temperature=TEMPERATURE, tokens_per_rank=10_000)["log_probs"]
    other, order = shuffled(batch)
    costs = batch.lengths.double() ** 2
    costly = batch.with_columns(per_sample={"cost": costs})
    assert role._plan(costly, 50) != role._plan(batch, 50)
    for step in (
        _train(role, batch, 24),
        _train(role, batch, 1),
        _train(role, other, 50),
        _train(role, costly, 50),
    ):
        assert step.loss == pytest.approx(whole.loss, rel=1e-5)
        assert step.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
        assert step.metrics == pytest.approx(whole.metrics)
    again = role.forward(batch, temperature=TEMPERATURE, tokens_per_rank=24)["log_probs"]
    torch.testing.assert_close(again, scores, atol=1e-5, rtol=0)
    moved = role.forward(other, temperature=TEMPERATURE, tokens_per_rank=24)["log_probs"]
    slots = torch.arange(len(scores)).split(batch.response_lengths.tolist())
    torch.testing.assert_close(moved, scores[torch.cat([slots[i] for i in order])], atol=1e-5, rtol=0)
    _check_mask(role, batch, whole)
    _check_empty(role)
    with pytest.raises(DataError, match="at most 512"):
        role.forward(random_batch(4, longest=800), temperature=1.0, tokens_per_rank=10)
    parallel.stop()
    return True


def _check_mask(role: Role, batch: TrainBatch, whole: StepResult) -> None:
    mask = batch.per_token["loss_mask"]
    poisoned = torch.where(mask > 0, batch.per_token["advantages"], torch.nan)
    step = _train(role, batch.with_columns({"advantages": poisoned}), budget=10_000)
    assert (step.loss, step.grad_norm) == (whole.loss, whole.grad_norm)
    step = _train(role, batch.with_columns({"loss_mask": torch.zeros_like(mask)}))
    assert (step.loss, step.grad_norm, step.finite) == (0.0, 0.0, True)


def _check_empty(role: Role) -> None:
    nothing = random_batch(0)
    assert role.forward(nothing, temperature=1.0, tokens_per_rank=10)["log_probs"].shape == (0,)
    step = _train(role, nothing)
    assert (step.loss, step.grad_norm, step.metrics, step.finite) == (0.0, 0.0, {}, True)


def test_budget_order_and_masked_tokens_change_nothing(model: str) -> None:
    assert run_ranks(_steps_agree, 1, model) == [True]


def _nan_loss(outputs: TokenOutputs, batch: TrainBatch) -> LossResult:
    return LossResult(total=outputs.log_probs.sum() * math.nan)


def _infinite_gradient(outputs: TokenOutputs, batch: TrainBatch) -> LossResult:
    # finite value, infinite slope
    return LossResult(total=torch.sqrt((outputs.log_probs - outputs.log_probs.detach()).abs()).sum())


def _survives(rank: int, world: int, port: int, path: str) -> bool:
    parallel.start(rank, world, "127.0.0.1", port)
    batches = [random_batch(6, seed) for seed in range(3)]
    calm, shaken = Role(_spec(path), SETTINGS), Role(_spec(path), SETTINGS)
    for batch in batches:
        before = weights_of(shaken)
        for loss in (_nan_loss, _infinite_gradient):
            step = _train(shaken, batch, loss=loss)
            assert not step.finite
        torch.testing.assert_close(weights_of(shaken), before, atol=0, rtol=0)
        assert _train(calm, batch) == _train(shaken, batch)
    torch.testing.assert_close(weights_of(shaken), weights_of(calm), atol=0, rtol=0)
    _check_other_settings(path, batches[0])
    parallel.stop()
    return True


def _check_other_settings(path: str, batch: TrainBatch) -> None:
    frozen = Role(_spec(path), None)
    assert not any(p.requires_grad for chunk in frozen.built.chunks for p in chunk.parameters())
    found = frozen.forward(batch, temperature=1.0, tokens_per_rank=40)["log_probs"]
    results = {}
    for sharded in (True, False):
        role = Role(_spec(path, use_distributed_optimizer=sharded), SETTINGS)
        torch.testing.assert_close(
            role.forward(batch, temperature=1.0, tokens_per_rank=40)["log_probs"], found
        )
        results[sharded] = [_train(role, batch) for _ in range(2)]
    for one, other in zip(results[True], results[False], strict=True):
        assert one.metrics == other.metrics
        assert one.loss == pytest.approx(other.loss, rel=1e-6)  # the norm is summed in another order
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-6)
    refused: dict[str, Any] = {"optimizer": "lion", "average_in_collective": True}
    for field, value in refused.items():
        with pytest.raises(ConfigError, match=field.replace("_", "-")):
            check_fields({field: value})


def test_a_loss_or_gradient_that_is_not_finite_changes_nothing(model: str) -> None:
    assert run_ranks(_survives, 1, model) == [True]


def _bf16(rank: int, world: int, port: int, path: str) -> bool:
    parallel.start(rank, world, "127.0.0.1", port)
    batch = random_batch(6)
    exact = Role(_spec(path), None).forward(batch, temperature=1.0, tokens_per_rank=40)["log_probs"]
    small = OptimizerSettings(lr=1e-5, clip_grad=0.0)
    role = Role(_spec(path, "bf16"), small)
    params = [p for chunk in role.built.chunks for p in chunk.parameters()]
    assert {p.dtype for p in params} == {torch.bfloat16}
    assert {vars(p)["main_grad"].dtype for p in params} == {torch.float32}
    found = role.forward(batch, temperature=1.0, tokens_per_rank=40)["log_probs"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, atol=0.3, rtol=0.05)
    before = [p.detach().clone() for p in params]
    steps = [_train(role, batch) for _ in range(40)]
    assert all(step.finite for step in steps)
    assert steps[-1].loss < steps[0].loss
    # each step is below the resolution of bf16 weights near 0.1: only fp32 masters can add them up
    moved = sum(int((p != old).sum()) for p, old in zip(params, before, strict=True))
    assert moved > 0.2 * sum(p.numel() for p in params)
    parallel.stop()
    return True


def test_bf16_keeps_fp32_masters_and_gradients(model: str) -> None:
    assert run_ranks(_bf16, 1, model) == [True]
