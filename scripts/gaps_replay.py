"""How far a trainer is from a bf16 engine, with and without replay of its experts and keys.

The `local` engine samples in bf16 from a random model of each family with experts; the trainer, in bf16 too,
scores the same tokens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    DeepseekV32Config,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    MiniMaxM2Config,
    PretrainedConfig,
    Qwen3MoeConfig,
)

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import REPLAYS
from rlcore.api.part import ModelSpec, Part
from rlcore.api.records import Kind
from rlcore.api.types import Prompt, Sample
from rlcore.plugins.loader import load
from rlcore.rollout.replay import with_choices
from rlcore_local.testing import Local
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_testing.checkpoints import make_checkpoint
from rlcore_testing.parts import part_of
from rlcore_testing.ranks import run_ranks

LAYERS, EXPERTS, TOP, SAMPLES, PROMPT, RESPONSE = 8, 32, 4, 32, 16, 64
SHAPE: dict[str, Any] = {
    **{"vocab_size": 199, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": LAYERS},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256},
    **{"moe_intermediate_size": 32, "num_experts_per_tok": TOP, "pad_token_id": None, "eos_token_id": 1},
}
HEADS: dict[str, Any] = {"head_dim": 16}
GROUPED: dict[str, Any] = {"n_routed_experts": EXPERTS, "first_k_dense_replace": 1}
LATENT: dict[str, Any] = {
    **{"n_group": 4, "topk_group": 2, "q_lora_rank": 24, "kv_lora_rank": 16, "num_nextn_predict_layers": 0},
    **{"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8},
}
UNGROUPED = {**LATENT, "n_group": 1, "topk_group": 1}
CONFIGS: dict[str, PretrainedConfig] = {
    "qwen3_moe": Qwen3MoeConfig(**SHAPE, **HEADS, num_experts=EXPERTS, norm_topk_prob=True),
    "glm4_moe": Glm4MoeConfig(**SHAPE, **GROUPED, **HEADS, num_mtp_layers=0),
    "glm4_moe_lite": Glm4MoeLiteConfig(**SHAPE, n_routed_experts=EXPERTS, **LATENT),
    "deepseek_v3": DeepseekV3Config(**SHAPE, **GROUPED, **LATENT),
    "deepseek_v32": DeepseekV32Config(
        **SHAPE, **GROUPED, **UNGROUPED, index_topk=16, index_n_heads=16, index_head_dim=16
    ),
    "minimax_m2": MiniMaxM2Config(
        **{**SHAPE, "intermediate_size": 32}, **HEADS, num_local_experts=EXPERTS, bos_token_id=None
    ),
}
COLUMNS = {"bf16 engine": False, "replayed": True}


def measured(family: str) -> dict[str, dict[str, float]]:
    """Column → `mean` of the |gap| of a log-prob, and `k3`, the estimate of KL(engine || trainer)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        make_checkpoint(path, CONFIGS[family])
        batch, rollout = sampled(path)
        ways = list(COLUMNS.values())
        found = run_ranks(scored, 1, str(path), _part(family), batch, ways)[0]
    return {column: _gap(one, rollout) for column, one in zip(COLUMNS, found, strict=True)}


def sampled(path: Path) -> tuple[TrainBatch, Tensor]:
    """What the engine says to random prompts, and its log-probs."""
    draw = torch.Generator().manual_seed(0)
    engine = Local(path, max_batch=SAMPLES, dtype=torch.bfloat16)
    prompts = torch.randint(2, SHAPE["vocab_size"], (SAMPLES, PROMPT), generator=draw).tolist()
    wanted = {"max_new_tokens": RESPONSE, "ignore_eos": True}
    sequences = [engine.sequence(str(n), prompt, **wanted) for n, prompt in enumerate(prompts)]
    for one in sequences:
        one.columns = engine.scheduler.weights.choices.columns
    answers = engine.run(sequences)
    samples = [_sample(one.rid, one.prompt, answers[one.rid]) for one in sequences]
    batch = TrainBatch(
        tokens=torch.tensor([token for one in samples for token in one.prompt_ids + one.response_ids]),
        prompt_lengths=torch.full((SAMPLES,), PROMPT),
        response_lengths=torch.full((SAMPLES,), RESPONSE),
    )
    batch = with_choices(batch, samples, sequences[0].columns)
    return batch, torch.tensor([value for one in samples for value in one.log_probs])


def scored(
    rank: int,
    size: int,
    port: int,
    path: str,
    part: Part,
    batch: TrainBatch,
    ways: Sequence[bool],
) -> list[Tensor]:
    """The trainer's log-probs: for each of `ways`, whether it replays."""
    parallel.start(rank, size, "127.0.0.1", port)
    found = []
    for replay in ways:
        replayed = frozenset(batch.per_item if replay else ())
        role = Role(ModelSpec(path=path, bridge=part, dtype="bf16"), None, replayed=replayed)
        found.append(role.forward(batch, temperature=1.0, tokens_per_rank=1024)["log_probs"])
    parallel.stop()
    return found


def _sample(rid: str, prompt: list[int], answer: dict[str, Any]) -> Sample:
    meta = answer["meta_info"]
    return Sample(
        prompt=Prompt(prompt_id=rid, text=""),
        prompt_ids=tuple(prompt),
        group_id=int(rid),
        index=0,
        rollout_id=rid,
        response_ids=tuple(answer["output_ids"]),
        loss_mask=(1,) * len(answer["output_ids"]),
        log_probs=tuple(entry[0] for entry in meta["output_token_logprobs"]),
        engine_columns={column: meta[column] for column in REPLAYS.values() if column in meta},
    )


def _part(family: str) -> Part:
    entry = load().registry.find(Kind.MODEL, family, "--model")
    return part_of(entry.component)


def _gap(trainer: Tensor, engine: Tensor) -> dict[str, float]:
    log_ratio = trainer - engine
    k3 = (log_ratio.exp() - 1 - log_ratio).mean()
    return {"mean": float(log_ratio.abs().mean()), "k3": float(k3)}
