"""Tokens go where they are sent: against transformers with those experts forced, and under every layout."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Glm4MoeConfig, Qwen3MoeConfig

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import ROUTED_EXPERTS
from rlcore.api.optimizer import OptimizerSettings
from rlcore.api.part import ModelSpec, Part
from rlcore.api.types import Prompt
from rlcore.rollout.batch import even_shares
from rlcore.rollout.expert_replay import expert_column, with_experts
from rlcore_local.testing import Local
from rlcore_machine.network import HeldPort
from rlcore_megatron.fields import split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_testing.checkpoints import make_checkpoint
from rlcore_testing.ranks import run_ranks
from rlcore_testing.samples import sample_of
from rlcore_testing.tiny import policy_loss

SHAPE: dict[str, Any] = {
    **{"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64},
    **{"moe_intermediate_size": 16, "num_experts_per_tok": 2, "pad_token_id": None, "eos_token_id": 1},
}
LAYERS, EXPERTS, TOP = 4, 6, 2
CONFIGS = {
    "qwen3_moe": Qwen3MoeConfig(**SHAPE, num_experts=EXPERTS, norm_topk_prob=True, mlp_only_layers=[1]),
    "glm4_moe": Glm4MoeConfig(
        **SHAPE,
        n_routed_experts=EXPERTS,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
        num_mtp_layers=0,
    ),
}
PARTS = {
    "qwen3_moe": Part(name="qwen3_moe", factory="rlcore_qwen.moe:QwenMoeBridge"),
    "glm4_moe": Part(name="glm4_moe", factory="rlcore_glm.moe:GlmMoeBridge"),
}
TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
EXPERT, CONTEXT = {"expert_model_parallel_size": 2}, {"context_parallel_size": 2}
PIPELINE = {"pipeline_model_parallel_size": 2}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
LAYOUTS: list[dict[str, Any]] = [TENSOR, EXPERT, {**TENSOR, **EXPERT}, CONTEXT, {**PIPELINE, **FULL}]
SETTINGS = OptimizerSettings(lr=1e-3)
COLUMN = expert_column(LAYERS, TOP)


def _batch(samples: int = 6, seed: int = 0) -> TrainBatch:
    """Groups of two with one prompt, whose experts, drawn for each token, are the same in both."""
    draw = torch.Generator().manual_seed(seed)
    prompts = torch.randint(1, 9, (samples // 2,), generator=draw).repeat_interleave(2)
    responses = torch.randint(1, 9, (samples,), generator=draw)
    shared_ids, shared_routes = torch.randint(0, 99, (samples, 9), generator=draw), _drawn(9 * samples, draw)
    ids, routes = [], []
    for number, (before, after) in enumerate(zip(prompts.tolist(), responses.tolist(), strict=True)):
        group = number // 2
        ids += [shared_ids[group, :before], torch.randint(0, 99, (after,), generator=draw)]
        routes += [shared_routes[9 * group : 9 * group + before], _drawn(after, draw)]
    live = int(responses.sum())
    return TrainBatch(
        tokens=torch.cat(ids),
        prompt_lengths=prompts,
        response_lengths=responses,
        per_token={
            "loss_mask": torch.ones(live),
            "weights": torch.ones(live) / live,
            "advantages": torch.randn(live, generator=draw),
        },
        per_sample={"position": torch.arange(samples), "group": torch.arange(samples) // 2},
        per_input={ROUTED_EXPERTS: torch.cat(routes)},
        columns={ROUTED_EXPERTS: COLUMN},
    )


def _drawn(tokens: int, draw: torch.Generator) -> Tensor:
    """Experts of a token by chance, each once, in any order."""
    return torch.rand(tokens, LAYERS, EXPERTS, generator=draw).argsort(-1)[..., :TOP].short()


def _measured(
    rank: int,
    world: int,
    port: int,
    path: str,
    part: Part,
    batches: Sequence[TrainBatch],
    layouts: Sequence[dict[str, Any]],
    more_ports: Sequence[int],
    replay: bool = True,
) -> list[Any]:
    """Log-probs of each layout and of each batch, and the step that follows."""
    found = []
    for place, megatron in zip((port, *more_ports), layouts, strict=True):
        parallel.start(rank, world, "127.0.0.1", place, timeout=60.0, **split(megatron).layout)
        for batch in batches:
            mine = batch.select(
                even_shares(batch.lengths.tolist(), parallel.data_size())[parallel.data_rank()]
            )
            role = Role(ModelSpec(path=path, bridge=part, fields=megatron), SETTINGS, replay_routing=replay)
            scores = role.forward(mine, temperature=1.0, tokens_per_rank=24)["log_probs"]
            step = role.train(mine, policy_loss, temperature=1.0, tokens_per_rank=24)
            found.append((mine.per_sample["position"], scores, step))
        parallel.stop()
    return found


@pytest.fixture(scope="module", params=list(CONFIGS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Part]:
    path = tmp_path_factory.mktemp("model") / request.param
    make_checkpoint(path, CONFIGS[request.param])
    return path, PARTS[request.param]


def test_forced_experts_are_those_of_transformers(model: tuple[Path, Part]) -> None:
    path, part = model
    batch = _batch()
    _, scores, step = run_ranks(_measured, 1, str(path), part, [batch], [{}], [])[0][0]
    free = run_ranks(_measured, 1, str(path), part, [batch], [{}], [], False)[0][0][1]
    expected, norm = _forced(path, batch)
    assert float((free - expected).abs().max()) > 0.1, "the experts are not those that the model would choose"
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)
    assert step.grad_norm == pytest.approx(norm, rel=1e-5)


def _forced(path: Path, batch: TrainBatch) -> tuple[Tensor, float]:
    """Log-probs of transformers, sample by sample, and the gradient norm of `policy_loss`."""
    models: Any = AutoModelForCausalLM
    one = models.from_pretrained(path, dtype=torch.float32).eval()
    routes: list[Tensor] = [torch.empty(0)]
    for number, layer in enumerate(one.model.layers):
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.register_forward_hook(_force(routes, number, one.config))
    rows = []
    starts = (batch.lengths.cumsum(0) - batch.lengths).tolist()
    for start, prompt, length in zip(
        starts, batch.prompt_lengths.tolist(), batch.lengths.tolist(), strict=True
    ):
        ids = batch.tokens[start : start + length]
        routes[0] = batch.per_input[ROUTED_EXPERTS][start : start + length].long()
        scores = one(ids[None]).logits[0].log_softmax(-1)
        rows.append(scores[prompt - 1 : -1].gather(1, ids[prompt:, None])[:, 0])
    log_probs = torch.cat(rows)
    (-batch.per_token["weights"] * batch.per_token["advantages"] * log_probs).sum().backward()
    squares = [(p.grad**2).sum() for p in one.parameters() if p.grad is not None]
    return log_probs.detach(), float(torch.stack(squares).sum().sqrt())


def _force(routes: list[Tensor], layer: int, config: Any) -> Callable[..., Any]:
    """Of the experts [T, layers, K] that lie in `routes` when the model runs."""

    def hook(module: Any, args: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, chosen = output[0], routes[0][:, layer]
        is_glm = config.model_type == "glm4_moe"
        weights = (logits.float().sigmoid() if is_glm else logits.float().softmax(-1)).gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights * config.routed_scaling_factor if is_glm else weights, chosen

    return hook


def test_the_engines_own_choice_changes_no_bit(model: tuple[Path, Part]) -> None:
    """In fp32 the engine chooses as the trainer does: prompt and response, through wire and batch."""
    path, part = model
    engine = Local(path)
    sequences = [
        engine.sequence(str(number), [5 + number // 2, 7, 9], sampling_seed=number) for number in range(4)
    ]
    for one in sequences:
        one.return_routed_experts = True
    answers = engine.run(sequences)
    samples = [
        sample_of(
            tuple(answers[one.rid]["output_ids"]),
            prompt=Prompt(prompt_id=one.rid, text=""),
            prompt_ids=tuple(one.prompt),
            group_id=number // 2,
            index=number % 2,
            rollout_id=one.rid,
            loss_mask=(1,) * len(answers[one.rid]["output_ids"]),
            engine_columns={ROUTED_EXPERTS: answers[one.rid]["meta_info"]["routed_experts"]},
        )
        for number, one in enumerate(sequences)
    ]
    lengths = torch.tensor([len(sample.response_ids) for sample in samples])
    live = int(lengths.sum())
    batch = TrainBatch(
        tokens=torch.tensor(
            [token for sample in samples for token in sample.prompt_ids + sample.response_ids]
        ),
        prompt_lengths=torch.full((4,), 3),
        response_lengths=lengths,
        per_token={name: torch.ones(live) for name in ("loss_mask", "weights", "advantages")},
        per_sample={"position": torch.arange(4), "group": torch.arange(4) // 2},
    )
    batch = with_experts(batch, samples, COLUMN)
    (_, with_replay, step), (_, without, own) = (
        run_ranks(_measured, 1, str(path), part, [batch], [{}], [], replay)[0][0] for replay in (True, False)
    )
    assert torch.equal(with_replay, without)
    assert step == own


@pytest.mark.full
def test_layouts_agree(model: tuple[Path, Part]) -> None:
    path, part = model
    batch = _batch(8)
    _, expected, alone = run_ranks(_measured, 1, str(path), part, [batch], [{}], [])[0][0]
    with contextlib.ExitStack() as held:
        ports = [held.enter_context(HeldPort()).number for _ in LAYOUTS[1:]]
        ranks = run_ranks(_measured, 2, str(path), part, [batch], LAYOUTS, ports)
    slots = torch.split(torch.arange(len(expected)), batch.response_lengths.tolist())
    for place, layout in enumerate(LAYOUTS):
        for found in ranks:
            position, scores, step = found[place]
            rows = torch.cat([slots[row] for row in position.tolist()])
            torch.testing.assert_close(scores, expected[rows], atol=1e-5, rtol=0, msg=str(layout))
            assert step.loss == pytest.approx(alone.loss, rel=1e-4, abs=1e-6), layout
            assert step.grad_norm == pytest.approx(alone.grad_norm, rel=1e-5), layout


def test_what_cannot_be_replayed_is_refused(model: tuple[Path, Part]) -> None:
    path, part = model
    batch = _batch(2)
    routes = batch.per_input[ROUTED_EXPERTS]
    twice, unknown = routes.clone(), routes.clone()
    twice[..., 1] = twice[..., 0]
    unknown[0, 2, 0] = EXPERTS
    wrong = {
        "no experts that an engine chose": None,
        r"expected \[\d+, 4, 2\]": routes[:, :3],
        f"chose experts from 0 to {EXPERTS}": unknown,
        "twice": twice,
    }
    given = [replace(batch, per_input={} if x is None else {ROUTED_EXPERTS: x}) for x in wrong.values()]
    for said, one in zip(wrong, given, strict=True):
        with pytest.raises(RuntimeError, match=said):
            run_ranks(_measured, 1, str(path), part, [one], [{}], [])
