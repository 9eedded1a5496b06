"""The routers' balancing loss: what its formula gives in plain torch, however a batch is divided."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlcore import LossResult, ModelSpec, OptimizerSettings, Part, TokenOutputs, TrainBatch
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_experts, random_batch

COEFFICIENT, SPARSE, EXPERTS, TOP = 0.3, 2, 4, 2
KIND = {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": COEFFICIENT}
CONTEXT = {"context_parallel_size": 2}
WAYS: list[dict[str, Any]] = [
    {"tokens": 1000},
    {"tokens": 25},
    {"tokens": 25, "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
]


def _nothing(outputs: TokenOutputs, batch: TrainBatch) -> LossResult:
    return LossResult(total=0.0 * outputs.log_probs.sum())


def _steps(rank: int, world: int, port: int, path: str, layout: dict[str, Any]) -> list[Any]:
    """A step that the balancing loss alone makes, each way."""
    parallel.start(rank, world, "127.0.0.1", port, timeout=60.0, **layout)
    part = Part(name="glm4_moe", factory="rlcore_glm.moe:GlmMoeBridge")
    found = []
    for way in WAYS:
        fields = {name: value for name, value in way.items() if name != "tokens"} | KIND | layout
        role = Role(ModelSpec(path=path, bridge=part, fields=fields), OptimizerSettings(lr=0.0))
        found.append(role.train(random_batch(9), _nothing, temperature=1.0, tokens_per_rank=way["tokens"]))
    parallel.stop()
    return found


def _expected(path: Path, batch: TrainBatch) -> tuple[float, float]:
    """The loss without its coefficient, and the norm of its gradient with it."""
    models: Any = AutoModelForCausalLM
    model = models.from_pretrained(path)
    logits: list[torch.Tensor] = []
    for layer in model.model.layers[1:]:
        layer.mlp.gate.register_forward_hook(lambda module, args, out: logits.append(_scores(module, args)))
    rows = batch.lengths.tolist()
    samples = zip(
        batch.tokens.split(rows),
        batch.prompt_lengths.tolist(),
        batch.per_token["loss_mask"].split(batch.response_lengths.tolist()),
        strict=True,
    )
    losses, count = [], 0
    for tokens, prompt, mask in samples:
        live = mask > 0
        if not live.any():
            continue
        count += 1
        logits.clear()
        model(tokens[None])
        for scores in logits:
            of_tokens = scores[prompt - 1 : -1][live]
            chosen = torch.zeros_like(of_tokens).scatter(1, of_tokens.topk(TOP).indices, 1.0)
            fraction = EXPERTS / TOP * chosen.mean(0)
            losses.append((fraction * (of_tokens / of_tokens.sum(-1, keepdim=True)).mean(0)).sum())
    loss = torch.stack(losses).sum() / count
    torch.autograd.backward(COEFFICIENT * loss)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return loss.item(), float(torch.stack([gradient.norm() for gradient in gradients]).norm())


def _scores(gate: Any, args: Any) -> torch.Tensor:
    return torch.nn.functional.linear(args[0].flatten(0, -2), gate.weight).sigmoid()


def test_it_is_that_of_the_formula_however_the_batch_is_divided(tmp_path: Path) -> None:
    path = make_experts(tmp_path / "m", num_hidden_layers=1 + SPARSE)
    loss, norm = _expected(path, random_batch(9))
    assert loss > SPARSE * 1.01
    alone, divided = run_ranks(_steps, 1, str(path), {}), run_ranks(_steps, 2, str(path), CONTEXT)
    for step in [step for steps in (*alone, *divided) for step in steps]:
        assert step.extras["router_balance"] == pytest.approx(loss, rel=1e-5)
        assert step.grad_norm == pytest.approx(norm, rel=1e-4)
        assert step.loss == 0.0
