"""What the one rank of a trainer's conformance tests does; `rlcore_testing.ranks` runs these functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.optimizer import OptimizerSettings
from rlcore.api.part import ModelSpec, Part
from rlcore.api.run_config import RunConfig
from rlcore.api.trainer import (
    LossResult,
    Models,
    Rendezvous,
    Roles,
    SleepLevel,
    TokenOutputs,
    TrainedPolicy,
    Trainer,
)
from rlcore_testing.tiny import random_batch

SETTINGS = OptimizerSettings(lr=1e-2, adam_eps=1e-4, lr_schedule="linear", total_steps=8, weight_decay=0.1)
TEMPERATURE, BUDGET = 0.7, 4096
SMALL_BUDGET = 30


def build(port: int, part: Part, bridge: Part, path: str, **roles: Any) -> Models:
    """The models of the one rank; a reference of the same directory where `reference` is true."""
    trainer: Trainer = part.build()
    fields = trainer.fields(RunConfig(), {}, gpu=torch.cuda.is_available())
    spec = ModelSpec(path=path, bridge=bridge, fields=fields)
    rank = trainer.join(Rendezvous(rank=0, world_size=1, host="127.0.0.1", port=port, seed=3), fields)
    reference = spec if roles.get("reference") else None
    return rank.build(Roles(policy=spec, optimizer=SETTINGS, reference=reference))


def policy_of(port: int, part: Part, bridge: Part, path: str) -> TrainedPolicy:
    """The policy alone."""
    policy = build(port, part, bridge, path).policy
    assert policy is not None
    return policy


def linear_loss(outputs: TokenOutputs, batch: TrainBatch) -> LossResult:
    """Σ weight · advantage · log-prob, whose gradient autograd gives on any model of the same weights."""
    columns = batch.per_token
    values = columns["weights"] * columns["advantages"] * outputs.log_probs
    return LossResult(total=values.sum(), metrics={"tokens": torch.tensor(float(len(values)))})


def no_number(outputs: TokenOutputs, batch: TrainBatch) -> LossResult:
    """A loss that is not finite."""
    return LossResult(total=outputs.log_probs.sum() * float("nan"))


def hf_log_probs(model: Any, batch: TrainBatch) -> Tensor:
    """Log-probs fp32 [R] of a model of transformers, sample by sample, without padding."""
    rows, start = [], 0
    for prompt, response in zip(batch.prompt_lengths.tolist(), batch.response_lengths.tolist(), strict=True):
        ids = batch.tokens[start : start + prompt + response]
        start += prompt + response
        if response:
            logits = model(input_ids=ids[None]).logits[0, prompt - 1 : -1].float() / TEMPERATURE
            rows.append(torch.log_softmax(logits, -1).gather(1, ids[prompt:, None])[:, 0])
    return torch.cat(rows)


def hf_model(path: str) -> Any:
    """The model of transformers in fp32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def _forward(policy: Any, batch: TrainBatch, budget: int = BUDGET, **more: Any) -> dict[str, Tensor]:
    outputs: dict[str, Tensor] = policy.forward(
        batch, temperature=TEMPERATURE, tokens_per_rank=budget, **more
    )
    return outputs


def _train(policy: TrainedPolicy, seed: int, loss: Any = linear_loss, budget: int = BUDGET) -> Any:
    return policy.train(random_batch(8, seed), loss, temperature=TEMPERATURE, tokens_per_rank=budget)


def _weights(policy: TrainedPolicy) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in policy.hf_tensors()}


def _largest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def log_probs(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> dict[str, float]:
    """Largest differences to transformers of log-probs, entropy and the likeliest tokens."""
    policy, batch = policy_of(port, part, bridge, path), random_batch(8)
    outputs = _forward(policy, batch, entropy=True, top=3)
    named = {**batch.per_token, "ids": outputs["top_ids"]}
    again = _forward(policy, TrainBatch(**{**vars(batch), "per_token": named}), chosen="ids")
    with torch.no_grad():
        wanted = hf_log_probs(hf_model(path), batch)
    assert outputs["log_probs"].dtype == torch.float32
    assert outputs["log_probs"].device.type == outputs["top_ids"].device.type == "cpu"
    assert outputs["top_ids"].shape == outputs["top_log_probs"].shape == (len(wanted), 3)
    return {
        "log_probs": float((outputs["log_probs"] - wanted).abs().max()),
        "below the entropy's bound": float((outputs["entropy"] >= 0).all()),
        "named": float((again["top_log_probs"] - outputs["top_log_probs"]).abs().max()),
        "descending": float((outputs["top_log_probs"].diff(dim=1) <= 0).all()),
    }


def gradient(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> dict[str, float]:
    """Loss and gradient norm of a linear loss, and those of autograd on transformers' model."""
    policy, batch, model = policy_of(port, part, bridge, path), random_batch(8), hf_model(path)
    results = _train(policy, 0)
    columns = batch.per_token
    total = (columns["weights"] * columns["advantages"] * hf_log_probs(model, batch)).sum()
    total.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return {
        "loss": abs(results.loss - float(total)),
        "norm": abs(results.grad_norm / float(torch.nn.utils.get_total_norm(gradients)) - 1),
        "tokens": results.metrics["tokens"] - float(batch.response_lengths.sum()),
        "lr": abs(results.lr - SETTINGS.lr),
    }


def split(rank: int, world: int, port: int, part: Part, bridge: Part, path: str, budget: int) -> Any:
    """What a step gives under a bound of tokens, and the weights after it."""
    policy = policy_of(port, part, bridge, path)
    scores = _forward(policy, random_batch(8), budget)["log_probs"]
    result = _train(policy, 0, budget=budget)
    return scores, result.loss, result.grad_norm, _weights(policy)


def resumed(rank: int, world: int, port: int, part: Part, bridge: Part, path: str, folder: str) -> float:
    """Three steps in one go; saved after two of them, and the third again from there: the difference."""
    policy = policy_of(port, part, bridge, path)
    _train(policy, 0), _train(policy, 1)
    staged = policy.stage()
    third = _train(policy, 2)
    staged.write(Path(folder))
    wanted, noise = _weights(policy), torch.rand(4)
    policy.load(Path(folder))
    again = _train(policy, 2)
    assert (again.loss, again.grad_norm, again.lr) == (third.loss, third.grad_norm, third.lr)
    return max(_largest(_weights(policy), wanted), float((torch.rand(4) - noise).abs().max()))


def published(rank: int, world: int, port: int, part: Part, bridge: Part, path: str, folder: str) -> Any:
    """The names of two publications, and how far transformers' model of the second is from the policy."""
    from safetensors.torch import save_file

    policy = policy_of(port, part, bridge, path)
    before = _weights(policy)
    _train(policy, 0)
    after = _weights(policy)
    out = Path(folder)
    out.mkdir()
    (out / "config.json").write_text(json.dumps(json.loads((Path(path) / "config.json").read_text())))
    save_file({name: tensor.contiguous() for name, tensor in after.items()}, out / "model.safetensors")
    batch = random_batch(8, seed=5)
    with torch.no_grad():
        wanted = hf_log_probs(hf_model(str(out)), batch)
    gap = float((_forward(policy, batch)["log_probs"] - wanted).abs().max())
    return list(before), list(after), _largest(before, after), gap


def not_finite(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> dict[str, float]:
    """A step that cannot be taken, and the one after it beside a policy that never saw it."""
    policy = policy_of(port, part, bridge, path)
    before = _weights(policy)
    result = _train(policy, 0, no_number)
    moved = _largest(before, _weights(policy))
    return {"finite": float(result.finite), "moved": moved, "lr": _train(policy, 1).lr - SETTINGS.lr}


def reference(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> dict[str, float]:
    """A reference stays where it was, until it takes over the policy's weights."""
    models, batch = build(port, part, bridge, path, reference=True), random_batch(8)
    assert models.policy is not None
    assert models.reference is not None
    first = _forward(models.reference, batch)["log_probs"]
    _train(models.policy, 0)
    kept = float((_forward(models.reference, batch)["log_probs"] - first).abs().max())
    apart = float((_forward(models.policy, batch)["log_probs"] - first).abs().max())
    models.reference.copy_weights(models.policy)
    new = _forward(models.policy, batch)["log_probs"]
    return {
        "kept": kept,
        "apart": apart,
        "copied": float((_forward(models.reference, batch)["log_probs"] - new).abs().max()),
    }


def slept(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> dict[str, Any]:
    """A step, a sleep of each kind and a step after it, beside a policy that stays awake."""
    models = build(port, part, bridge, path, reference=True)
    policy, other = models.policy, models.reference
    assert policy is not None
    assert other is not None
    levels: tuple[SleepLevel, ...] = ("optimizer", "all")
    batch = random_batch(8)
    scores = _forward(other, batch)["log_probs"]
    results, freed, left, lent = [], [], [], []
    for seed, what in enumerate(levels):
        _train(policy, seed)
        policy.sleep("optimizer")
        published = [tensor for _, tensor in policy.hf_tensors()]
        freed.append(policy.sleep(what) + other.sleep(what))
        left.append(sum(tensor.untyped_storage().nbytes() for tensor in published))
        policy.sleep("optimizer")
        lent.append(_weights(policy))
        policy.wake()
        other.wake()
        results.append(_weights(policy))
    moved = float((_forward(other, batch)["log_probs"] - scores).abs().max())
    return {"weights": results, "lent": lent, "freed": freed, "left": left, "moved": moved}


def awake(rank: int, world: int, port: int, part: Part, bridge: Part, path: str) -> list[dict[str, Tensor]]:
    """The weights after each of the steps that `slept` takes."""
    policy = policy_of(port, part, bridge, path)
    return [(_train(policy, seed), _weights(policy))[1] for seed in range(2)]
