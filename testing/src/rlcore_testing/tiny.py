"""A tiny model directory and random batches, for tests of the trainer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rlcore.api.batch import TrainBatch
from rlcore.api.trainer import LossResult, TokenOutputs

VOCAB_SIZE = 99
ENTROPY_WEIGHT = 0.01


def without_end(path: Path) -> Path:
    """The model directory `path` without its end token: a response is as long as it is asked to be."""
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        settings = json.loads((path / name).read_text())
        kept = {key: value for key, value in settings.items() if not key.startswith("eos_token")}
        (path / name).write_text(json.dumps(kept))
    return path


def make_qwen3(path: Path, **changes: Any) -> Path:
    """A random Qwen3 of 2 layers and width 64 at `path`; `changes` are fields of its config."""
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
        "max_position_embeddings": 512,
        **changes,
    }
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**settings)).save_pretrained(path)
    return path


def make_experts(path: Path, **changes: Any) -> Path:
    """A random GLM-4.5 of 2 layers, the first dense, at `path`; router biases too are random."""
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
        "max_position_embeddings": 512,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "num_mtp_layers": 0,
        **changes,
    }
    torch.manual_seed(0)
    model = Glm4MoeForCausalLM(Glm4MoeConfig(**settings))
    with torch.no_grad():
        for buffer in model.buffers():
            if buffer.shape == (settings["n_routed_experts"],):
                buffer.normal_(std=0.1)
    model.save_pretrained(path)
    return path


def random_batch(samples: int, seed: int = 0, longest: int = 12) -> TrainBatch:
    """Prompts of 1 to `longest` and responses of 0 to `longest` tokens, a third of them masked.

    Two samples after each other are a group with one prompt.
    """
    draw = torch.Generator().manual_seed(seed)
    group = torch.arange(samples) // 2
    prompts = torch.randint(1, longest + 1, (samples,), generator=draw)[group]
    responses = torch.randint(0, longest + 1, (samples,), generator=draw)
    count = int(responses.sum())
    texts = torch.randint(0, VOCAB_SIZE, (samples, longest), generator=draw)
    tokens = [texts.new_empty(0)]
    for sample in range(samples):
        tokens.append(texts[group[sample], : prompts[sample]])
        tokens.append(torch.randint(0, VOCAB_SIZE, (int(responses[sample]),), generator=draw))
    return TrainBatch(
        tokens=torch.cat(tokens),
        prompt_lengths=prompts,
        response_lengths=responses,
        per_token={
            "loss_mask": (torch.rand(count, generator=draw) < 0.67).float(),
            "weights": torch.rand(count, generator=draw) / max(1, count),
            "advantages": torch.randn(count, generator=draw),
        },
        per_sample={"position": torch.arange(samples), "group": group},
    )


def policy_loss(outputs: TokenOutputs, batch: TrainBatch) -> LossResult:
    """A policy gradient with an entropy bonus over the unmasked tokens; a NaN behind the mask stays there."""
    kept = batch.per_token["loss_mask"] > 0
    advantages = torch.where(
        kept, batch.per_token["advantages"], 0.0
    )  # before the product: its slope is NaN too
    losses = -advantages * outputs.log_probs
    if outputs.entropy is not None:
        losses = losses - ENTROPY_WEIGHT * outputs.entropy
    weights = batch.per_token["weights"]
    return LossResult(
        total=(weights * kept * losses).sum(), metrics={"tokens": kept.sum(), "weight": weights[kept].sum()}
    )


def shuffled(batch: TrainBatch, seed: int = 1) -> tuple[TrainBatch, Sequence[int]]:
    """The same samples in another order, and that order."""
    order: list[int] = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed)).tolist()
    return batch.select(order), order
