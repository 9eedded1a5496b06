"""The plan against the trainer: bytes of real models on real ranks, and of what autograd saves."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from rlcore.api.batch import TrainBatch
from rlcore.api.lora import AdapterSpec
from rlcore.api.model_facts import ModelFacts
from rlcore.api.optimizer import OptimizerSettings
from rlcore.api.part import ModelSpec, Part
from rlcore.api.roles import ModelKind, RoleSpec
from rlcore.api.trainer import LossResult
from rlcore.compose.models import adopted, families, find
from rlcore.engines.publish_file import Fp8Weights, WeightForms
from rlcore.plugins.loader import load
from rlcore_megatron.fields import check_fields, split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.layers import attention
from rlcore_megatron.mcore.packs import context
from rlcore_megatron.mcore.role.critic import Critic
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.mcore.role.sleeping import gradient_buffers, optimizer_state
from rlcore_megatron.plan.activations import Batch, saved
from rlcore_megatron.plan.adapters import TARGETS, Adapted
from rlcore_megatron.plan.layout import Layout, Recompute
from rlcore_megatron.plan.memory import BYTES, Beside, Optimizer, Workload, of_stage, states
from rlcore_megatron.plan.phases import slept
from rlcore_megatron.plan.publication import publication
from rlcore_megatron.plan.scoring import scoring
from rlcore_megatron.plan.settings import optimizer_of
from rlcore_megatron.plan.weights import parameters
from rlcore_testing.activations import MadeBytes, equal_samples, saved_bytes, state_bytes
from rlcore_testing.mtp import publish_mimo, publish_mtp
from rlcore_testing.parts import part_of
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import VOCAB_SIZE, policy_loss
from rlcore_toolkit import Fields, read_facts
from rlcore_toolkit.publishers.broadcast import BroadcastPublisher

SAMPLES, PROMPT, RESPONSE = 4, 16, 48
TOKENS, ROWS = SAMPLES * (PROMPT + RESPONSE - 1), SAMPLES * RESPONSE
WITHIN = 0.05
BUCKET = 400_000
"""Bytes, of about 20 tensors."""
SMALL_BUCKET = 50_000

TENSOR, PIPELINE = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}
SEQUENCE = {**TENSOR, "sequence_parallel": True}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
LAYOUTS: list[tuple[Layout, dict[str, Any]]] = [
    (Layout(world=1), {}),
    (Layout(world=1, recompute=Recompute()), FULL),
    (Layout(world=2), {}),
    (Layout(world=2, tensor=2), TENSOR),
    (Layout(world=2, tensor=2, sequence=True), SEQUENCE),
    (Layout(world=2, pipeline=2), PIPELINE),
    (Layout(world=2, context=2), {"context_parallel_size": 2}),
    (
        Layout(world=2, pipeline=2, stages=(3, 1), recompute=Recompute(block=True)),
        {**PIPELINE, **FULL, "recompute_method": "block", "num_layers_in_last_pipeline_stage": 1},
    ),
]
VIRTUAL = (
    Layout(world=2, pipeline=2, virtual=2),
    {**PIPELINE, "virtual_pipeline_model_parallel_size": 2},
)
DISTRIBUTED = (
    Layout(world=2, tensor=2, recompute=Recompute(distributed=True)),
    {**TENSOR, **FULL, "distribute_saved_activations": True},
)
EXPERT = (Layout(world=2, expert=2), {"expert_model_parallel_size": 2})
CUT = (Layout(world=2, expert_tensor=2), {"expert_tensor_parallel_size": 2})
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
ROUTED = {"moe_intermediate_size": 32, "num_experts_per_tok": 2, "pad_token_id": 0}
SHARED = {
    **ROUTED,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_mtp_layers": 0,
}
LATENT = {
    **{"num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0},
    **{"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16},
}
DELTA = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "head_dim": 16},
    **{"linear_key_head_dim": 16, "linear_value_head_dim": 16, "shared_expert_intermediate_size": 32},
    "layer_types": ["linear_attention", "full_attention"],
}
CHANNELS = {
    **{"num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16},
    **{"v_head_dim": 16, "linear_num_heads": 4, "linear_head_dim": 16},
    "layer_types": ["linear_attention", "full_attention"],
}
INDEX = {"index_topk": 16, "index_n_heads": 4, "index_head_dim": 32}
TAUGHT = {"dsa_indexer_loss_coeff": 0.5}
WIDE = {"sliding_window": 512}
"""On a CPU, windows that are shorter than the sequences make copies of keys, which a GPU does not."""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3 tied": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3 of 4": ("qwen3", {"head_dim": 16, "num_hidden_layers": 4}),
    "qwen3 of 20": ("qwen3", {"head_dim": 16, "num_hidden_layers": 20}),
    "qwen3 of many tokens": ("qwen3", {"head_dim": 16, "vocab_size": 2000}),
    "qwen2": ("qwen2", {}),
    "llama": ("llama", {"head_dim": 32}),
    "glm4": ("glm4", {"head_dim": 16, "attention_bias": True, "pad_token_id": 0}),
    "qwen3_moe": ("qwen3_moe", {"head_dim": 16, "num_experts": 8, **ROUTED}),
    "qwen3_moe of 8": ("qwen3_moe", {"head_dim": 16, "num_experts": 8, **ROUTED, "num_hidden_layers": 8}),
    "glm4_moe": ("glm4_moe", {"head_dim": 16, **SHARED}),
    "minimax_m2": ("minimax_m2", {"head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 3}),
    "qwen3_next": ("qwen3_next", {"num_experts": 8, **ROUTED, **DELTA}),
    "gpt_oss": ("gpt_oss", {"head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2, **WIDE}),
    "glm4_moe_lite": ("glm4_moe_lite", {"q_lora_rank": None, **SHARED, **LATENT}),
    "deepseek_v3": ("deepseek_v3", {"q_lora_rank": 32, **SHARED, **LATENT}),
    "deepseek_v32": ("deepseek_v32", {"q_lora_rank": 32, **SHARED, **LATENT, **INDEX}),
    "glm5": (
        "glm_moe_dsa",
        {"q_lora_rank": 32, **SHARED, **LATENT, **INDEX, "indexer_types": ["full", "shared"]},
    ),
    "qwen3_5": ("qwen3_5_text", {name: DELTA[name] for name in DELTA if "shared" not in name}),
    "gemma3": ("gemma3_text", {"head_dim": 16, **WIDE, "pad_token_id": 0}),
    "qwen3_5_moe": ("qwen3_5_moe_text", {"num_experts": 8, **ROUTED, **DELTA}),
    "mistral": ("mistral", {"head_dim": 16, **WIDE}),
    "ministral3": ("ministral3", {"head_dim": 16}),
    "kimi_linear": ("kimi_linear", {"num_experts": 8, **ROUTED, **CHANNELS}),
    "deepseek_v3 mtp": ("deepseek_v3", {"q_lora_rank": 32, **SHARED, **LATENT, "num_hidden_layers": 3}),
    "mimo mtp": ("qwen2", {"num_hidden_layers": 3}),
    "glm4_moe mtp": ("glm4_moe", {"head_dim": 16, **SHARED, "num_hidden_layers": 3}),
}
"""model_type, and what differs from `SIZES`; of "mtp" the last layer is one for multi-token prediction."""
MTP = {"mtp_num_layers": 1}
Models = dict[str, tuple[Path, Part, ModelFacts]]


def _measure(
    rank: int, world: int, port: int, path: str, part: Part, megatron: dict[str, Any], dtypes: str, count: int
) -> list[tuple[int, tuple[int, int, int], int]]:
    """This rank's stage; bytes of weights, gradients and optimizer states; bytes saved for backward.

    In each of `dtypes`. `count`: of micro-batches.
    """
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    parallel.start(rank, world, "127.0.0.1", port, **split(megatron).layout)
    batch, tokens, found = equal_samples(SAMPLES, PROMPT, RESPONSE), (TOKENS + SAMPLES) // count, []
    for dtype in dtypes.split():
        spec = ModelSpec(path=path, bridge=part, fields=megatron, dtype=dtype)
        role = Role(spec, OptimizerSettings(lr=1e-3))
        step = partial(role.train, batch, policy_loss, temperature=1.0, tokens_per_rank=tokens)
        kept = saved_bytes(role.models, step)
        found.append((parallel.pipeline_rank(), state_bytes(role), kept))
    parallel.stop()
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A random model of each kind, its bridge and its facts."""
    logging.disable_progress_bar()
    registry, made = load().registry, {}
    for name, (model_type, changes) in MODELS.items():
        path = tmp_path_factory.mktemp("model")
        config = AutoConfig.for_model(model_type, **{**SIZES, "tie_word_embeddings": False, **changes})
        AutoModelForCausalLM.from_config(config).save_pretrained(path)
        if name == "mimo mtp":
            publish_mimo(path)
            path = adopted(path, families(registry), name, tmp_path_factory.mktemp("cache"))
        elif name.endswith(" mtp"):
            publish_mtp(path)
        family = find(str(path), registry, "--model").family
        made[name] = path, part_of(family), read_facts(str(path), registry)
    return made


@pytest.mark.grid
@pytest.mark.parametrize(
    ("layout", "megatron", "dtypes", "name"),
    [
        (Layout(world=2, pipeline=2, mtp=True), {**PIPELINE, **MTP}, "bf16", "deepseek_v3 mtp"),
        (*CUT, "bf16", "glm4_moe"),
        (*LAYOUTS[0], "bf16 fp32", "qwen3"),
        *[(*LAYOUTS[number], "bf16", "qwen3") for number in (1, 2, 3, 4, 6)],
        (*LAYOUTS[7], "bf16", "qwen3 of 4"),
        (*VIRTUAL, "bf16", "qwen3 of 4"),
        (*DISTRIBUTED, "bf16", "qwen3 of 4"),
        (*LAYOUTS[4], "fp32", "qwen3 tied"),
        (*LAYOUTS[5], "bf16", "qwen3 tied"),
        *[(*LAYOUTS[4], "bf16 fp32", name) for name in ("qwen2", "llama", "glm4")],
        (*LAYOUTS[0], "bf16", "qwen3_moe"),
        (*LAYOUTS[0], "bf16 fp32", "deepseek_v3"),
        (*EXPERT, "bf16", "glm4_moe"),
        (*LAYOUTS[4], "bf16", "glm4_moe"),
        (*LAYOUTS[0], "bf16 fp32", "minimax_m2"),
        (*LAYOUTS[4], "bf16", "minimax_m2"),
        (*LAYOUTS[0], "bf16 fp32", "qwen3_next"),
        (*LAYOUTS[4], "bf16", "qwen3_next"),
        (*LAYOUTS[6], "bf16", "qwen3_next"),
        (*LAYOUTS[0], "bf16 fp32", "kimi_linear"),
        (*LAYOUTS[4], "bf16", "kimi_linear"),
        (*LAYOUTS[6], "bf16", "kimi_linear"),
        (*LAYOUTS[0], "bf16 fp32", "gpt_oss"),
        (*CUT, "bf16", "gpt_oss"),
        (LAYOUTS[0][0], TAUGHT, "bf16 fp32", "glm5"),
        *[(*LAYOUTS[0], "bf16 fp32", name) for name in ("qwen3_5", "qwen3_5_moe", "gemma3", "mistral")],
        (*LAYOUTS[0], "bf16 fp32", "ministral3"),
        (*LAYOUTS[4], "bf16", "deepseek_v3"),
        (*LAYOUTS[5], "bf16", "deepseek_v3"),
        (*LAYOUTS[6], "bf16", "deepseek_v3"),
        (LAYOUTS[0][0], TAUGHT, "bf16 fp32", "deepseek_v32"),
        (LAYOUTS[4][0], {**SEQUENCE, **TAUGHT}, "bf16", "deepseek_v32"),
        (LAYOUTS[6][0], {**LAYOUTS[6][1], **TAUGHT}, "bf16 fp32", "deepseek_v32"),
        *[(Layout(world=1, mtp=True), MTP, "bf16 fp32", f"{name} mtp") for name in ("deepseek_v3", "mimo")],
        (Layout(world=2, tensor=2, sequence=True, mtp=True), {**SEQUENCE, **MTP}, "bf16", "glm4_moe mtp"),
    ],
)
def test_states_are_exact_and_activations_close(
    models: Models, layout: Layout, megatron: dict[str, Any], dtypes: str, name: str
) -> None:
    path, part, facts = models[name]
    # of a pipeline so many that each stage has as many open as it ever has
    count = SAMPLES if layout.pipeline > 1 else 1
    optimizer = optimizer_of(Fields(path, "megatron", megatron))
    assert optimizer.teaches_indexers == (megatron.keys() >= TAUGHT.keys())
    found = run_ranks(_measure, layout.world, str(path), part, megatron, dtypes, count)
    parts = layout.context * count
    for dtype, of_ranks in zip(dtypes.split(), zip(*found, strict=True), strict=True):
        batch = Batch(
            tokens=TOKENS // parts,
            rows=ROWS // parts,
            bytes=BYTES[dtype],
            longest=PROMPT + RESPONSE - 1,
            on_cpu=True,
            teaches_indexers=optimizer.teaches_indexers,
        )
        work = Workload(dtype=dtype, micro_batches=count)
        for number in range(layout.pipeline):
            ranks = [(held, bytes_) for stage, held, bytes_ in of_ranks if stage == number]
            planned = states(facts, layout, dtype, number, optimizer)
            kept = (planned.weights, planned.gradients)
            if layout.virtual == 1:
                assert {held[:2] for held, _ in ranks} == {kept}, "weights and gradients"
            else:  # each chunk's buffer is padded for itself
                assert [held[:2] for held, _ in ranks] == [pytest.approx(kept, rel=WITHIN)]
            most = max(held[2] for held, _ in ranks)
            assert most == planned.optimizer, "the rank with most optimizer states"
            waiting = of_stage(facts, layout, work, number).waiting
            expected = saved(facts, layout, batch, number, waiting=waiting)
            for _, bytes_ in ranks:
                assert abs(bytes_ - expected) <= WITHIN * bytes_


RECOMPUTED: dict[str, list[tuple[str, ...]]] = {
    "qwen3": [("core_attn", "mlp")],
    "glm4_moe": [("mlp",), ("core_attn", "shared_experts")],
    "deepseek_v3": [("core_attn",), ("mlp", "moe")],
    "deepseek_v32": [("core_attn",)],
    "qwen3_next": [("core_attn",)],
    "kimi_linear": [("core_attn",)],
}
"""Modules of a layer that are computed again alone."""


def _kept(
    rank: int, world: int, port: int, path: str, part: Part, modules: list[tuple[str, ...]]
) -> list[int]:
    """Bytes saved for backward with each of `modules`, in both dtypes."""
    parallel.start(rank, world, "127.0.0.1", port)
    batch, found = equal_samples(SAMPLES, PROMPT, RESPONSE), []
    for dtype in BYTES:
        for names in modules:
            fields: dict[str, Any] = {"recompute_granularity": "selective", "recompute_modules": list(names)}
            spec = ModelSpec(path=path, bridge=part, fields=fields, dtype=dtype)
            role = Role(spec, OptimizerSettings(lr=1e-3))
            step = partial(role.train, batch, policy_loss, temperature=1.0, tokens_per_rank=TOKENS + SAMPLES)
            found.append(saved_bytes(role.models, step))
    parallel.stop()
    return found


@pytest.mark.grid
@pytest.mark.parametrize("name", RECOMPUTED)
def test_modules_that_are_computed_again(models: Models, name: str) -> None:
    path, part, facts = models[name]
    [found] = run_ranks(_kept, 1, str(path), part, RECOMPUTED[name])
    planned = [
        saved(
            facts,
            Layout(world=1, recompute=Recompute(modules=names)),
            Batch(tokens=TOKENS, rows=ROWS, bytes=size, longest=PROMPT + RESPONSE - 1, on_cpu=True),
            0,
        )
        for size in BYTES.values()
        for names in RECOMPUTED[name]
    ]
    assert planned == pytest.approx(found, rel=WITHIN)


def _scored(rank: int, world: int, port: int, path: str, part: Part) -> list[int]:
    """The most bytes at one time as a frozen model scores, in both dtypes."""
    parallel.start(rank, world, "127.0.0.1", port)
    batch, found = equal_samples(SAMPLES, PROMPT, RESPONSE), []
    for dtype in BYTES:
        role = Role(ModelSpec(path=path, bridge=part, fields={}, dtype=dtype), None)
        own = [tensor for chunk in role.built.chunks for tensor in (*chunk.parameters(), *chunk.buffers())]
        made = MadeBytes(own)
        with made:
            role.forward(batch, temperature=1.0, tokens_per_rank=TOKENS + SAMPLES)
        found.append(made.peak)
    parallel.stop()
    return found


@pytest.mark.grid
@pytest.mark.parametrize(
    "name", ["llama", "qwen3", "deepseek_v3", "qwen3_next", "kimi_linear", "gemma3", "qwen3 of many tokens"]
)
def test_what_scoring_takes(models: Models, name: str) -> None:
    path, part, facts = models[name]
    [found] = run_ranks(_scored, 1, str(path), part)
    batches = [Batch(tokens=TOKENS, rows=ROWS, bytes=size, on_cpu=True) for size in BYTES.values()]
    planned = [scoring(facts, Layout(world=1), batch, 0) for batch in batches]
    assert planned == pytest.approx(found, rel=WITHIN)


class _Flash(torch.autograd.Function):
    """What torch's varlen kernel, which is a GPU's alone, keeps and makes; its numbers mean nothing."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(q)
        ctx.save_for_backward(q, k, v, out, q.new_zeros(q.shape[:2], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, *_ = ctx.saved_tensors
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


def _varlen_attn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, enable_gqa: bool = False, **__: Any
) -> Any:
    return _Flash.apply(q, k, v)  # type: ignore[no-untyped-call] # of torch


LONG = (1, 16, 240)
"""One sample, prompt and response, so that each context-parallel rank sees others' tokens."""


def _shared(
    rank: int, world: int, port: int, models: list[tuple[str, Part]], tables: list[dict[str, Any]]
) -> list[list[int]]:
    """Of each model what is saved under each of `tables`, and the most at one time as it scores, in bf16.

    With the attention of a GPU, and without gloo, which may hold a tensor for a moment longer.
    """
    from torch.nn.attention import varlen

    vars(varlen)["varlen_attn"] = _varlen_attn
    vars(attention)["_by_length"] = attention._varlen
    vars(context)["gather_from_sequence_parallel_region"] = lambda x, group: torch.cat([x] * world)
    parallel.start(rank, world, "127.0.0.1", port, context_parallel_size=world)
    batch, found, tokens = equal_samples(*LONG), [], sum(LONG[1:])
    for path, part in models:
        kept = []
        for fields in tables:
            role = Role(
                ModelSpec(path=path, bridge=part, fields=fields, dtype="bf16"), OptimizerSettings(lr=1e-3)
            )
            step = partial(role.train, batch, policy_loss, temperature=1.0, tokens_per_rank=tokens)
            kept.append(saved_bytes(role.models, step))
        role = Role(ModelSpec(path=path, bridge=part, fields={}, dtype="bf16"), None)
        made = MadeBytes(
            tensor for chunk in role.built.chunks for tensor in (*chunk.parameters(), *chunk.buffers())
        )
        with made:
            role.forward(batch, temperature=1.0, tokens_per_rank=tokens)
        found.append([*kept, made.peak])
    parallel.stop()
    return found


@pytest.mark.full
def test_context_parallel_ranks_keep_what_they_see(models: Models) -> None:
    world, names = 2, ["qwen3", "llama", "deepseek_v3"]
    tables: list[dict[str, Any]] = [{}, FULL, {"recompute_granularity": "selective"}]
    chosen = [(str(path), part) for path, part, _ in map(models.__getitem__, names)]
    work = Workload(tokens=sum(LONG[1:]))
    for found in run_ranks(_shared, world, chosen, tables):
        for name, measured in zip(names, found, strict=True):
            facts, layout = models[name][2], Layout(world=world, context=world)
            batch = replace(work.batch(layout), rows=LONG[2] // world)
            ways = (None, Recompute(), Recompute(modules=("core_attn",)))
            planned = [saved(facts, replace(layout, recompute=way), batch, 0) for way in ways]
            planned.append(scoring(facts, layout, batch, 0))
            assert planned == pytest.approx(measured, rel=WITHIN), name


def _hosted(
    rank: int, world: int, port: int, path: str, part: Part, megatron: dict[str, Any], dtype: str
) -> tuple[int, int]:
    """Bytes of the optimizer's states on the device, and of those that are kept and updated on the host."""
    parallel.start(rank, world, "127.0.0.1", port)
    role = Role(ModelSpec(path=path, bridge=part, fields=megatron, dtype=dtype), OptimizerSettings(lr=1e-3))
    found = [0, 0]
    for chained in role.optimizer.chained_optimizers:
        own = chained.optimizer
        for param, state in own.state.items():
            found[param in own._hosted] += sum(tensor.nbytes for tensor in state.values())
    parallel.stop()
    return found[0], found[1]


@pytest.mark.grid
@pytest.mark.parametrize(
    ("megatron", "optimizer"),
    [
        ({"optimizer_cpu_offload": True}, Optimizer(on_host=1.0)),
        ({"use_precision_aware_optimizer": True}, Optimizer(owns_masters=True)),
        (
            {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"},
            Optimizer(owns_masters=True, moments=4),
        ),
    ],
)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_states_in_host_memory_and_narrow_ones(
    models: Models, megatron: dict[str, Any], optimizer: Optimizer, dtype: str
) -> None:
    path, part, facts = models["qwen3"]
    found = run_ranks(_hosted, 2, str(path), part, megatron, dtype)
    planned = states(facts, Layout(world=2), dtype, 0, optimizer)
    assert (planned.optimizer, planned.hosted) == max(found)


def _whole(
    rank: int, world: int, port: int, path: str, part: Part, tables: list[dict[str, Any]], dtype: str
) -> list[tuple[int, int, int]]:
    """Under each of `tables` the bytes of weights, gradients and states."""
    parallel.start(rank, world, "127.0.0.1", port)
    found = []
    for table in tables:
        spec = ModelSpec(path=path, bridge=part, fields=check_fields(table), dtype=dtype)
        role = Role(spec, OptimizerSettings(lr=1e-3))
        weights = sum(one.nbytes for model in role.models for one in model.parameters())
        gradients = sum(one.nbytes for one in gradient_buffers(role.models, role.optimizer))
        held = sum(one.nbytes for one in optimizer_state(role.built.chunks, role.optimizer))
        found.append((weights, gradients, held))
    parallel.stop()
    return found


@pytest.mark.parametrize(("dtype", "name"), [("bf16", "glm4_moe"), ("fp32", "qwen3")])
def test_states_that_no_rank_shares(models: Models, dtype: str, name: str) -> None:
    path, part, facts = models[name]
    kinds: list[dict[str, Any]] = [
        {"use_distributed_optimizer": "false", "grad_reduce_in_fp32": "false"},
        {"optimizer": "sgd"},
        {"optimizer": "sgd", "sgd_momentum": "0"},
        {"optimizer": "muon"},
    ]
    [found] = run_ranks(_whole, 1, str(path), part, kinds, dtype)
    for measured, table in zip(found, kinds, strict=True):
        optimizer = optimizer_of(Fields(path, "megatron", table))
        planned = states(facts, Layout(world=2), dtype, 0, optimizer)
        assert measured == (planned.weights, planned.gradients, planned.optimizer), table


def _freed(
    rank: int, world: int, port: int, path: str, part: Part, megatron: dict[str, Any], dtype: str
) -> tuple[int, int]:
    """Bytes that leave the device in a sleep of the optimizer, and of all, after a step."""
    parallel.start(rank, world, "127.0.0.1", port, **split(megatron).layout)
    role = Role(ModelSpec(path=path, bridge=part, fields=megatron, dtype=dtype), OptimizerSettings(lr=1e-3))
    batch = equal_samples(SAMPLES, PROMPT, RESPONSE)
    role.train(batch, policy_loss, temperature=1.0, tokens_per_rank=TOKENS + SAMPLES)
    found = role.sleep("optimizer"), role.sleep("all")
    role.wake()
    parallel.stop()
    return found


@pytest.mark.grid
@pytest.mark.parametrize(
    ("megatron", "layout", "optimizer"),
    [
        ({}, Layout(world=2), Optimizer()),
        (TENSOR, Layout(world=2, tensor=2), Optimizer()),
        (
            {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"},
            Layout(world=2),
            Optimizer(owns_masters=True, moments=4),
        ),
    ],
    ids=["DP 2", "TP 2", "narrow moments"],
)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_what_a_sleep_frees(
    models: Models,
    megatron: dict[str, Any],
    layout: Layout,
    optimizer: Optimizer,
    dtype: str,
) -> None:
    path, part, facts = models["qwen3"]
    planned = of_stage(facts, layout, Workload(dtype=dtype), 0, optimizer)
    most = max(run_ranks(_freed, 2, str(path), part, megatron, dtype))
    states = planned.gradients + planned.optimizer
    assert most == (pytest.approx(states, rel=WITHIN), pytest.approx(states + planned.weights, rel=WITHIN))


def _published(
    rank: int, world: int, port: int, path: str, part: Part, megatron: dict[str, Any], dtype: str
) -> tuple[int, int, int]:
    """Bytes that a publication makes at one time on this rank, which sends; in FP8; in small buckets."""
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    parallel.start(rank, world, "127.0.0.1", port, **split(megatron).layout)
    role = Role(ModelSpec(path=path, bridge=part, fields=megatron, dtype=dtype), None)
    publisher = BroadcastPublisher(
        root=Path(path), dtype="bf16", backend="gloo", limit_s=60.0, bucket_bytes=BUCKET, checks=False
    )
    names = {name for name, _ in role.hf_tensors() if name.endswith("_proj.weight")}
    small = publisher.holding(WeightForms(fp8=Fp8Weights(block=(32, 32), names=frozenset(names))))
    own = [tensor for chunk in role.built.chunks for tensor in (*chunk.parameters(), *chunk.buffers())]
    few = replace(publisher, bucket_bytes=SMALL_BUCKET)
    plain, fp8, least = MadeBytes(own), MadeBytes(own), MadeBytes(own)
    for made, way in ((plain, publisher), (fp8, small), (least, few)):
        with made:
            for _ in way.pieces(role.hf_tensors(), sends=True, tells=True):
                pass
    parallel.stop()
    return plain.peak, fp8.peak, least.peak


@pytest.mark.full
@pytest.mark.parametrize(
    ("layout", "megatron", "dtype", "name"),
    [
        (*LAYOUTS[3], "bf16", "qwen3 of 20"),
        (*EXPERT, "bf16", "qwen3_moe of 8"),
        (*LAYOUTS[0], "fp32", "qwen3 of 20"),
        (*LAYOUTS[5], "bf16", "qwen3 of 20"),
        (*CUT, "fp32", "qwen3_moe of 8"),
    ],
)
def test_what_a_publication_takes(
    models: Models, layout: Layout, megatron: dict[str, Any], dtype: str, name: str
) -> None:
    path, part, facts = models[name]
    found = run_ranks(_published, layout.world, str(path), part, megatron, dtype)
    *planned_for, of_small = zip(*found, strict=True)
    for fp8, peaks in zip((False, True), planned_for, strict=True):
        planned = publication(facts, layout, dtype, "bf16", BUCKET, fp8=fp8)
        assert planned == pytest.approx(max(peaks), rel=WITHIN)
    whole = parameters(facts) * BYTES["bf16"]
    assert max(of_small) * 4 < whole, "no rank has a whole copy of the model"


def _square(values: torch.Tensor, batch: TrainBatch) -> LossResult:
    return LossResult(total=(values * values).sum(), metrics={})


def _others(
    rank: int, world: int, port: int, path: str, part: Part
) -> tuple[int, tuple[int, int, int], int, int, int]:
    """This rank's stage; of a critic the states, and what it saves in a step; the bytes of a frozen model;
    those that both have in host memory while they sleep.
    """
    parallel.start(rank, world, "127.0.0.1", port, **split(PIPELINE).layout)
    spec = ModelSpec(path=path, bridge=part, fields=PIPELINE, dtype="bf16")
    critic, frozen = Critic(spec, OptimizerSettings(lr=1e-3)), Role(spec, None)
    resident = sum(param.nbytes for model in frozen.models for param in model.parameters())
    batch = equal_samples(SAMPLES, PROMPT, RESPONSE)
    kept = saved_bytes(critic.models, lambda: critic.fit(batch, _square, tokens_per_rank=TOKENS + SAMPLES))
    stage, states = parallel.pipeline_rank(), state_bytes(critic)
    hosted = 0
    for role in (critic, frozen):
        role.sleep("all")
        kept_there = [*role._away._optimizer._kept, *role._away._weights._kept]
        hosted += sum(copy.nbytes for *_, copy in kept_there)
    parallel.stop()
    return stage, states, kept, resident, hosted


@pytest.mark.grid
@pytest.mark.parametrize("name", ["qwen3", "qwen3 tied", "deepseek_v3"])
def test_a_critic_and_a_reference(models: Models, name: str) -> None:
    path, part, facts = models[name]
    layout, work = Layout(world=2, pipeline=2), Workload(tokens=TOKENS)
    batch = Batch(tokens=TOKENS, rows=ROWS, bytes=BYTES["bf16"], on_cpu=True)
    for stage, measured, kept, resident, hosted in run_ranks(_others, 2, str(path), part):
        critic = states(facts, layout, "bf16", stage, values=True)
        assert measured == (critic.weights, critic.gradients, critic.optimizer)
        assert abs(saved(facts, layout, batch, stage, values=True) - kept) <= WITHIN * kept
        trained = Beside(role="critic", facts=facts, optimizer=Optimizer())
        reference = Beside(role="reference", facts=facts)
        beside = of_stage(facts, layout, work, stage, roles=(trained, reference))
        assert (beside.roles, beside.role_states) == (measured[0] + resident, measured[1] + measured[2])
        alone = of_stage(facts, layout, work, stage)
        assert slept(beside, "all") - slept(alone, "all") == pytest.approx(hosted, rel=WITHIN)
        swapped = of_stage(facts, layout, work, stage, roles=(replace(reference, is_swapped=True),))
        assert (swapped.roles, swapped.host) == (0, 2 * resident)


def _adapted(
    rank: int,
    world: int,
    port: int,
    path: str,
    part: Part,
    megatron: dict[str, Any],
    dtype: str,
    adapters: tuple[Adapted, ...],
) -> tuple[int, int, int, int]:
    """Bytes of all weights, of gradients and optimizer states, and what is saved for the backward pass.

    Of a policy for each of `adapters`, which take a step by turns.
    """
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    parallel.start(rank, world, "127.0.0.1", port, **split(megatron).layout)
    spec = ModelSpec(path=path, bridge=part, fields=megatron, dtype=dtype)
    settings = OptimizerSettings(lr=1e-3)
    own, *others = (AdapterSpec(rank=one.rank, alpha=8.0, targets=tuple(one.targets)) for one in adapters)
    role = Role(spec, settings, adapter=own)
    further = (RoleSpec(kind=ModelKind.POLICY, model=spec, optimizer=settings, overlay=one) for one in others)
    roles = [role, *map(role.further, further)]
    batch, tokens, kept, held = equal_samples(SAMPLES, PROMPT, RESPONSE), TOKENS + SAMPLES, 0, []
    for one in roles:
        step = partial(one.train, batch, policy_loss, temperature=1.0, tokens_per_rank=tokens)
        one._put_adapters()  # what is in place is no activation
        kept = max(kept, saved_bytes(one.models, step))
        held.append(state_bytes(one))
    frozen = sum(one.nbytes for model in role.models for one in model.parameters() if not one.requires_grad)
    weights, gradients, optimizer = map(sum, zip(*held, strict=True))
    parallel.stop()
    return frozen + weights, gradients, optimizer, kept


ADAPTED = Adapted(rank=8, targets=frozenset(TARGETS))
SMALL = Adapted(rank=3, targets=frozenset({"v_proj", "down_proj"}))


@pytest.mark.grid
@pytest.mark.parametrize(
    ("layout", "megatron", "dtype", "name", "adapters"),
    [
        (*LAYOUTS[4], "bf16", "qwen3 of 4", (SMALL, ADAPTED)),
        (*EXPERT, "bf16", "qwen3_moe of 8", (ADAPTED,)),
        (*LAYOUTS[0], "fp32", "qwen3 of 4", (ADAPTED, SMALL)),
        (*LAYOUTS[1], "bf16", "qwen3 of 20", (ADAPTED,)),
        (*LAYOUTS[5], "bf16", "qwen3 of 4", (ADAPTED,)),
        (*CUT, "bf16", "glm4_moe", (ADAPTED,)),
    ],
)
def test_adapters_alone_have_gradients_and_states(
    models: Models,
    layout: Layout,
    megatron: dict[str, Any],
    dtype: str,
    name: str,
    adapters: tuple[Adapted, ...],
) -> None:
    path, part, facts = models[name]
    found = run_ranks(_adapted, layout.world, str(path), part, megatron, dtype, adapters)
    optimizer, per_rank = Optimizer(adapters=adapters), layout.world // layout.pipeline
    largest = max(adapters, key=lambda one: one.rank)
    for number in range(layout.pipeline):
        planned = states(facts, layout, dtype, number, optimizer)
        ranks = found[number * per_rank : (number + 1) * per_rank]
        assert {held[:2] for held in ranks} == {(planned.weights, planned.gradients)}
        assert max(held[2] for held in ranks) == planned.optimizer
        batch = Batch(tokens=TOKENS, rows=ROWS, bytes=BYTES[dtype], on_cpu=True, adapter=largest)
        # ranks of experts have tokens more or fewer
        kept = sum(held[3] for held in ranks) / len(ranks)
        assert kept == pytest.approx(saved(facts, layout, batch, number), rel=WITHIN)
