"""The losses of the trainers' suite, and what transformers says of its batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.trainer import LossResult, TokenOutputs
from rlcore_testing.tiny import VOCAB_SIZE

TEMPERATURE = 0.7


def linear_loss(outputs: TokenOutputs, batch: TrainBatch) -> LossResult:
    """Σ weight · advantage · log-prob, whose gradient autograd gives on any model of the same weights."""
    columns = batch.per_token
    values = columns["weights"] * columns["advantages"] * outputs.log_probs
    return LossResult(total=values.sum(), metrics={"tokens": torch.tensor(float(len(values)))})


def every_loss(outputs: TokenOutputs, batch: TrainBatch) -> LossResult:
    """The same of all that a trainer gives: log-probs, entropy and, if asked, log-probs of given tokens."""
    assert outputs.entropy is not None
    values = outputs.log_probs + outputs.entropy
    if outputs.chosen is not None:
        values = values + outputs.chosen.sum(1)
    return linear_loss(TokenOutputs(log_probs=values), batch)


def no_number(outputs: TokenOutputs, batch: TrainBatch) -> LossResult:
    """A loss that is not finite."""
    return LossResult(total=outputs.log_probs.sum() * float("nan"))


def no_slope(outputs: TokenOutputs, batch: TrainBatch) -> LossResult:
    """A finite loss, 0, whose gradient is not finite."""
    return LossResult(total=(outputs.log_probs - outputs.log_probs.detach()).sqrt().sum())


def with_given(batch: TrainBatch) -> TrainBatch:
    """With three tokens for each response token, in the column `given`."""
    draw = torch.Generator().manual_seed(0)
    given = torch.randint(0, VOCAB_SIZE, (int(batch.response_lengths.sum()), 3), generator=draw)
    return TrainBatch(**{**vars(batch), "per_token": {**batch.per_token, "given": given}})


def hf_distributions(model: Any, batch: TrainBatch) -> tuple[Tensor, Tensor]:
    """Outputs of a model of transformers, sample by sample, without padding.

    Log-probs fp32 [R, V] of every token that could stand in a response, and those fp32 [R] of the ones that
    do.
    """
    rows, targets, start = [], [], 0
    for prompt, response in zip(batch.prompt_lengths.tolist(), batch.response_lengths.tolist(), strict=True):
        ids = batch.tokens[start : start + prompt + response]
        start += prompt + response
        if response:
            logits = model(input_ids=ids[None]).logits[0, prompt - 1 : -1].float() / TEMPERATURE
            rows.append(torch.log_softmax(logits, -1))
            targets.append(ids[prompt:])
    every = torch.cat(rows)
    return every, every.gather(1, torch.cat(targets)[:, None])[:, 0]


def hf_model(path: str) -> Any:
    """The model of transformers in fp32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def entropy_of(every: Tensor) -> Tensor:
    """[R] of log-probs [R, V]."""
    return -(every.exp() * every).sum(1)
