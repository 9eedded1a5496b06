"""Ragged columns for tests: items of samples, of which some samples have none."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import Column, Reach


def with_items(batch: TrainBatch, counts: Sequence[int], reach: Reach = "share") -> TrainBatch:
    """`batch` with `counts` items of each sample: `patches` [N, 2, 3], which reach `reach`, and `marks` [N].

    Sample i has the items 100 i, 100 i + 1 and so on; a patch begins with the number of its item.
    """
    numbers = [100 * row + item for row, count in enumerate(counts) for item in range(count)]
    marks = torch.tensor(numbers, dtype=torch.int32)
    return batch.with_columns(
        per_sample={"items": torch.tensor(list(counts), dtype=torch.int64)},
        per_item={"patches": (marks[:, None] + torch.arange(6)).view(-1, 2, 3).bfloat16(), "marks": marks},
        columns={
            "patches": Column(per="item", lengths="items", dtype="bfloat16", shape=(2, 3), reach=reach),
            "marks": Column(per="item", lengths="items", dtype="int32", shape=()),
        },
    )


def check_same(found: TrainBatch, expected: TrainBatch) -> None:
    """Fails where two batches have other columns, declarations, dtypes or values."""
    assert found.columns == expected.columns
    for name in ("tokens", "prompt_lengths", "response_lengths"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    for per, table in expected.tables.items():
        assert found.tables[per].keys() == table.keys()
        for name, tensor in table.items():
            other = found.tables[per][name]
            assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape), name
            assert torch.equal(other, tensor), name
