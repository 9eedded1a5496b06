"""The columns that the config of a part asks for, in a batch of random samples."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import TEACHER_TOP_LOG_PROBS, TOP_IDS, Input, TopTokens
from rlcore.api.part_config import BatchConfig, LossConfig

PAIRS = ((0, 4), (2, 5), (1, 3))
"""The samples of the random batch that are the two responses of a pair."""


def with_needed(batch: TrainBatch, config: BatchConfig) -> TrainBatch:
    """`batch` with every column that a part with `config` `needs`, NaN behind the mask."""
    top = config.top_tokens if isinstance(config, LossConfig) else None
    return batch.with_columns(
        {**_per_token(batch, config.needs), **(_top(batch, top) if top else {})},
        _per_sample(batch, config.needs),
    )


def with_pairs(batch: TrainBatch) -> TrainBatch:
    """`batch` as one of given pairs."""
    unit, chosen = torch.zeros(len(batch), dtype=torch.int64), torch.zeros(len(batch), dtype=torch.int64)
    for number, (first, second) in enumerate(PAIRS):
        unit[[first, second]], chosen[first] = number, 1
    return batch.with_columns(per_sample={"unit": unit, "group": unit, "chosen": chosen})


def top_log_probs(new_R: Tensor, count: int) -> Tensor:
    """Log-probs of the `count` likeliest tokens, [R, K]: the sampled one, and equal shares of the rest."""
    rest_R = (0.6 / max(1, count - 1) * (1 - new_R.exp())).log()
    return torch.stack([new_R, *[rest_R] * (count - 1)], 1)


def _per_token(batch: TrainBatch, needs: Collection[Input]) -> dict[str, Tensor]:
    mask_R = batch.per_token["loss_mask"]
    draw = torch.Generator().manual_seed(0)
    known_R = batch.per_token.get("old_log_probs", batch.per_token.get("rollout_log_probs"))
    assert known_R is not None, "a batch has log-probs"
    noise_R = torch.rand(len(mask_R), generator=draw, dtype=known_R.dtype)
    columns = {
        Input.OLD_LOG_PROBS: known_R,
        Input.OLD_ENTROPY: 2 * noise_R,
        Input.REFERENCE_LOG_PROBS: known_R + 0.2 * (noise_R - 0.5),
        Input.TEACHER_LOG_PROBS: 1.5 * known_R + 1,  # a gap of both signs
        Input.VALUES: noise_R,
    }
    return {
        str(name): torch.where(mask_R > 0, columns[name], torch.nan)
        for name in columns
        if name in needs and name not in batch.per_token
    }


def _per_sample(batch: TrainBatch, needs: Collection[Input]) -> dict[str, Tensor]:
    return (
        {Input.GREEDY_REWARD: batch.per_sample["group"].float() / 5} if Input.GREEDY_REWARD in needs else {}
    )


def _top(batch: TrainBatch, top: TopTokens) -> dict[str, Tensor]:
    theirs_R = batch.per_token["old_log_probs"]
    ids_RK = torch.arange(top.count).expand(len(theirs_R), top.count)
    return {TOP_IDS: ids_RK, TEACHER_TOP_LOG_PROBS: top_log_probs(theirs_R, top.count)}
