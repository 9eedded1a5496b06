"""The whole batch, from shares of any size and order, on real ranks."""

import torch
import torch.distributed as dist

from rlcore.api.batch import TrainBatch
from rlcore.learning import gather
from rlcore.learning.gather import gather_batch, gather_rows, rows_of, with_local
from rlcore_testing.items import check_same, with_items
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import random_batch

ITEMS = [2, 0, 1, 0, 3, 0, 5]
SHARES: tuple[list[int], ...] = ([5, 0, 3], [], [1, 4, 2, 6])
"""Positions of the samples of each rank: out of order, of unequal numbers, and none."""


def _whole() -> TrainBatch:
    """Each column differs in each row, also those of several dimensions."""
    batch = random_batch(7)
    tokens = int(batch.response_lengths.sum())
    return with_items(batch.with_columns({"top": torch.arange(3 * tokens).view(tokens, 3)}), ITEMS)


def _run(rank: int, world: int, port: int) -> bool:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    whole, group = _whole(), dist.group.WORLD
    gather.MESSAGE_BYTES = 200  # a few columns in each message
    local = whole.select(SHARES[rank])
    found = gather_batch(local, group)
    check_same(found, whole.reaching("all"))
    assert "patches" not in found.columns, "they stay on their rank"
    rows = rows_of(torch.tensor(SHARES[rank], dtype=torch.int64), found.per_sample["position"])
    check_same(with_local(found.select(rows), local), local)
    in_order = gather_rows([torch.tensor(SHARES[rank], dtype=torch.int64)], group)[0]
    assert in_order.tolist() == [row for share in SHARES for row in share]
    dist.destroy_process_group()
    return True


def test_every_rank_has_the_samples_in_the_order_of_their_positions() -> None:
    assert run_ranks(_run, len(SHARES)) == [True] * len(SHARES)


def test_one_process_sorts_what_it_has() -> None:
    whole = _whole()
    check_same(gather_batch(whole.select([6, 2, 0, 1, 5, 4, 3]), None), whole.reaching("all"))
