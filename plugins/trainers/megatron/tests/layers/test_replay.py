"""Layers take over an engine's choices: against transformers with them forced, and under every layout."""

import base64
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_ranks import share_of
from torch import Tensor
from transformers import AutoModelForCausalLM, Glm4MoeConfig, GlmMoeDsaConfig, Qwen3MoeConfig

from rlcore import INDEXER_TOPK, ROUTED_EXPERTS, ModelSpec, OptimizerSettings, Part, Prompt, TrainBatch
from rlcore.rollout.replay import with_choices
from rlcore_local.testing import Local
from rlcore_machine.network import HeldPort
from rlcore_megatron.fields import split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_testing.checkpoints import make_checkpoint
from rlcore_testing.ranks import run_ranks
from rlcore_testing.samples import sample_of
from rlcore_testing.tiny import policy_loss
from rlcore_toolkit import packed_keys

SHAPE: dict[str, Any] = {
    **{"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64},
    **{"moe_intermediate_size": 16, "num_experts_per_tok": 2, "pad_token_id": None, "eos_token_id": 1},
}
LAYERS, EXPERTS, TOP, INDEXERS, KEYS = 4, 6, 2, 2, 3
CONFIGS = {
    "qwen3_moe": Qwen3MoeConfig(**SHAPE, num_experts=EXPERTS, norm_topk_prob=True, mlp_only_layers=[1]),
    "glm4_moe": Glm4MoeConfig(
        **SHAPE,
        n_routed_experts=EXPERTS,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
        num_mtp_layers=0,
    ),
    "glm_moe_dsa": GlmMoeDsaConfig(
        **{**SHAPE, "num_key_value_heads": 4},
        n_routed_experts=EXPERTS,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
        index_topk=KEYS,
        index_n_heads=4,
        index_head_dim=12,
        indexer_types=["full", "shared"] * INDEXERS,
    ),
}
PARTS = {
    "qwen3_moe": Part(name="qwen3_moe", factory="rlcore_qwen.moe:QwenMoeBridge"),
    "glm4_moe": Part(name="glm4_moe", factory="rlcore_glm.moe:GlmMoeBridge"),
    "glm_moe_dsa": Part(name="glm_moe_dsa", factory="rlcore_glm.sparse:GlmSparseBridge"),
}
TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
EXPERT, CONTEXT = {"expert_model_parallel_size": 2}, {"context_parallel_size": 2}
PIPELINE = {"pipeline_model_parallel_size": 2}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
LAYOUTS: list[dict[str, Any]] = [TENSOR, EXPERT, {**TENSOR, **EXPERT}, CONTEXT, {**PIPELINE, **FULL}]
VIRTUAL = {**PIPELINE, "virtual_pipeline_model_parallel_size": 2}
"""Of layers with indices of their own: a chunk of one layer that shares those of another is refused."""
SETTINGS = OptimizerSettings(lr=1e-3)
Choices = list[dict[str, Tensor]]
"""For each sample, by column: experts [tokens, LAYERS, TOP]; keys [tokens, INDEXERS, KEYS], -1 for none."""


def _columns(part: Part) -> frozenset[str]:
    return frozenset({ROUTED_EXPERTS, INDEXER_TOPK} if part.name == "glm_moe_dsa" else {ROUTED_EXPERTS})


def _batch(
    columns: Collection[str], samples: int = 6, seed: int = 0, indexers: int = INDEXERS
) -> tuple[TrainBatch, Choices]:
    """Groups of two with one prompt, whose choices, drawn for each token, are the same in both."""
    draw = torch.Generator().manual_seed(seed)
    prompts = torch.randint(1, 9, (samples // 2,), generator=draw).repeat_interleave(2)
    responses = torch.randint(1, 9, (samples,), generator=draw)
    ids: list[Tensor] = []
    choices: Choices = []
    for number, (before, after) in enumerate(zip(prompts.tolist(), responses.tolist(), strict=True)):
        length = before + after
        draws: dict[str, Callable[..., Tensor]] = {
            ROUTED_EXPERTS: _drawn,
            INDEXER_TOPK: partial(_drawn_keys, indexers),
        }
        own = {name: draws[name](length, draw) for name in sorted(columns)}
        tokens = torch.randint(0, 99, (length,), generator=draw)
        if number % 2:
            for mine, shared in ((tokens, ids[-1]), *((own[name], choices[-1][name]) for name in own)):
                mine[:before] = shared[:before]
        ids.append(tokens)
        choices.append(own)
    live = int(responses.sum())
    batch = TrainBatch(
        tokens=torch.cat(ids),
        prompt_lengths=prompts,
        response_lengths=responses,
        per_token={
            "loss_mask": torch.ones(live),
            "weights": torch.ones(live) / live,
            "advantages": torch.randn(live, generator=draw),
        },
        per_sample={"position": torch.arange(samples), "group": torch.arange(samples) // 2},
    )
    return _given(batch, choices), choices


def _given(batch: TrainBatch, choices: Choices) -> TrainBatch:
    """`batch` with the choices for all tokens but the last of each sample, as an engine gives them."""

    def answer(name: str, chosen: Tensor) -> str:
        read = chosen[:-1].numpy()
        data = b"".join(packed_keys(read)) if name == INDEXER_TOPK else read.astype("<i4").tobytes()
        return base64.b64encode(data).decode()

    samples = [
        sample_of(engine_columns={name: answer(name, chosen) for name, chosen in own.items()})
        for own in choices
    ]
    return with_choices(batch, samples, choices[0])


def _drawn(tokens: int, draw: torch.Generator) -> Tensor:
    """Experts of a token by chance, each once, in any order."""
    return torch.rand(tokens, LAYERS, EXPERTS, generator=draw).argsort(-1)[..., :TOP]


def _drawn_keys(indexers: int, tokens: int, draw: torch.Generator) -> Tensor:
    """Keys of a token by chance, among those that it sees."""
    seen = torch.ones(tokens, indexers, max(tokens, KEYS)).transpose(0, 1).tril().transpose(0, 1)
    keys = (torch.rand(seen.shape, generator=draw) * seen).argsort(-1, descending=True)[..., :KEYS]
    return torch.where(seen.gather(-1, keys) > 0, keys, -1)


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
            mine = share_of(batch)
            spec = ModelSpec(path=path, bridge=part, fields=megatron)
            role = Role(spec, SETTINGS, replayed=_columns(part) if replay else frozenset())
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


def test_forced_choices_are_those_of_transformers(model: tuple[Path, Part]) -> None:
    path, part = model
    batch, choices = _batch(_columns(part))
    _, scores, step = run_ranks(_measured, 1, str(path), part, [batch], [{}], [])[0][0]
    free = run_ranks(_measured, 1, str(path), part, [batch], [{}], [], False)[0][0][1]
    expected, norm = _forced(path, batch, choices)
    assert float((free - expected).abs().max()) > 0.1, "the choices are not those of the model itself"
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)
    assert step.grad_norm == pytest.approx(norm, rel=1e-5)


def _forced(path: Path, batch: TrainBatch, choices: Choices) -> tuple[Tensor, float]:
    """Log-probs of transformers, sample by sample, and the gradient norm of `policy_loss`."""
    models: Any = AutoModelForCausalLM
    one = models.from_pretrained(path, dtype=torch.float32).eval()
    own: dict[str, Tensor] = {}
    for number, layer in enumerate(one.model.layers):
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.register_forward_hook(_force(own, number, one.config))
        if getattr(layer.self_attn, "indexer", None) is not None:
            layer.self_attn.indexer.register_forward_hook(_force_keys(own, number // 2))
    rows = []
    starts = (batch.lengths.cumsum(0) - batch.lengths).tolist()
    for start, prompt, length, chosen in zip(
        starts, batch.prompt_lengths.tolist(), batch.lengths.tolist(), choices, strict=True
    ):
        ids = batch.tokens[start : start + length]
        own |= chosen
        scores = one(ids[None]).logits[0].log_softmax(-1)
        rows.append(scores[prompt - 1 : -1].gather(1, ids[prompt:, None])[:, 0])
    log_probs = torch.cat(rows)
    (-batch.per_token["weights"] * batch.per_token["advantages"] * log_probs).sum().backward()
    squares = [(p.grad**2).sum() for p in one.parameters() if p.grad is not None]
    return log_probs.detach(), float(torch.stack(squares).sum().sqrt())


def _force_keys(own: Mapping[str, Tensor], indexer: int) -> Callable[..., Any]:
    """Of the keys [T, indexers, K] that are in `own` when the model runs; one of them stands for none."""

    def hook(module: Any, args: Any, output: Tensor) -> Tensor:
        keys = own[INDEXER_TOPK][:, indexer]
        return torch.where(keys < 0, keys[:, :1], keys)[None].to(output)

    return hook


def _force(own: Mapping[str, Tensor], layer: int, config: Any) -> Callable[..., Any]:
    """Of the experts [T, layers, K] that are in `own` when the model runs."""

    def hook(module: Any, args: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, chosen = output[0], own[ROUTED_EXPERTS][:, layer]
        is_glm = config.model_type.startswith("glm")
        weights = (logits.float().sigmoid() if is_glm else logits.float().softmax(-1)).gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights * config.routed_scaling_factor if is_glm else weights, chosen

    return hook


def test_the_engines_own_choice_gives_its_log_probs(model: tuple[Path, Part]) -> None:
    """Prompt and response, through wire and batch.

    In fp32 the engine chooses the experts that the trainer does. Of keys with equal scores, which a ReLU
    makes often where an indexer has few heads, it takes others.
    """
    path, part = model
    engine = Local(path)
    sequences = [
        engine.sequence(str(number), [5 + number // 2, 7, 9], sampling_seed=number) for number in range(4)
    ]
    for one in sequences:
        one.columns = _columns(part)
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
            engine_columns={name: answers[one.rid]["meta_info"][name] for name in one.columns},
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
    batch = with_choices(batch, samples, _columns(part))
    (_, with_replay, step), (_, without, own) = (
        run_ranks(_measured, 1, str(path), part, [batch], [{}], [], replay)[0][0] for replay in (True, False)
    )
    rollout = [row[0] for one in sequences for row in answers[one.rid]["meta_info"]["output_token_logprobs"]]
    torch.testing.assert_close(with_replay, torch.tensor(rollout), atol=1e-5, rtol=0)
    if INDEXER_TOPK in _columns(part):
        assert float((with_replay - without).abs().max()) > 0.1
    else:
        assert torch.equal(with_replay, without)
        assert step == own


@pytest.mark.full
def test_layouts_agree(model: tuple[Path, Part]) -> None:
    path, part = model
    batch, _ = _batch(_columns(part), 8)
    layouts, taught = [*LAYOUTS, VIRTUAL], {}
    if part.name == "glm_moe_dsa":
        taught = {"dsa_indexer_loss_coeff": 0.5}  # which learns from the replayed keys
        layouts = [{**layout, **taught} for layout in LAYOUTS]
    _agree(path, part, batch, taught, layouts)


@pytest.mark.full
def test_each_virtual_stage_gets_the_keys_of_its_indexer(tmp_path: Path) -> None:
    config = CONFIGS["glm_moe_dsa"].to_dict() | {"indexer_types": ["full"] * LAYERS}
    make_checkpoint(tmp_path, GlmMoeDsaConfig(**config))
    part = PARTS["glm_moe_dsa"]
    _agree(tmp_path, part, _batch(_columns(part), indexers=LAYERS)[0], {}, [VIRTUAL])


def _agree(
    path: Path,
    part: Part,
    batch: TrainBatch,
    taught: dict[str, Any],
    layouts: Sequence[dict[str, Any]],
) -> None:
    """Two ranks under each layout compute what one rank does."""
    _, expected, alone = run_ranks(_measured, 1, str(path), part, [batch], [taught], [])[0][0]
    with contextlib.ExitStack() as held:
        ports = [held.enter_context(HeldPort()).number for _ in layouts[1:]]
        ranks = run_ranks(_measured, 2, str(path), part, [batch], layouts, ports)
    slots = torch.split(torch.arange(len(expected)), batch.response_lengths.tolist())
    for place, layout in enumerate(layouts):
        for found in ranks:
            position, scores, step = found[place]
            rows = torch.cat([slots[row] for row in position.tolist()])
            torch.testing.assert_close(scores, expected[rows], atol=1e-5, rtol=0, msg=str(layout))
            assert step.loss == pytest.approx(alone.loss, rel=1e-4, abs=1e-6), layout
            assert step.grad_norm == pytest.approx(alone.grad_norm, rel=1e-5), layout


def test_what_cannot_be_replayed_is_refused(model: tuple[Path, Part]) -> None:
    path, part = model
    batch, choices = _batch(_columns(part), 2)

    def experts(change: Callable[[Tensor], Tensor], name: str = ROUTED_EXPERTS) -> TrainBatch:
        return _given(batch, [{**choices[0], name: change(choices[0][name])}, *choices[1:]])

    keys = partial(experts, name=INDEXER_TOPK)

    wrong = {
        "the batch has none that an engine chose": replace(batch, per_item={}),
        "sample 0 of the batch do not fit: cannot reshape": experts(lambda chosen: chosen.flatten()),
        f"experts from 0 to {EXPERTS}": experts(lambda chosen: torch.where(chosen == 1, EXPERTS, chosen)),
        "twice": experts(lambda chosen: chosen[:, :, :1].expand_as(chosen)),
        "stand before the last one to train on": experts(lambda chosen: chosen[:-1]),
    }
    if INDEXER_TOPK in choices[0]:
        wrong["token 0 has 0 keys, expected 1"] = keys(lambda chosen: torch.where(chosen == 0, -1, chosen))
    for said, one in wrong.items():
        with pytest.raises(RuntimeError, match=said):
            run_ranks(_measured, 1, str(path), part, [one], [{}], [])
