"""Ranks: they find each other, a failure of one ends all with its reason, and so does time."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from rlcore_megatron.mcore import parallel
from rlcore_testing.ranks import run_ranks


def test_two_ranks_in_each_layout() -> None:
    tensor, pipeline = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}
    data: dict[str, int] = {}
    assert run_ranks(describe, 2, tensor) == [(0, 1, 0, 2, 0, 1, True, True), (0, 1, 1, 2, 0, 1, True, True)]
    assert run_ranks(describe, 2, pipeline) == [
        (0, 1, 0, 1, 0, 2, True, False),
        (0, 1, 0, 1, 1, 2, False, True),
    ]
    assert run_ranks(describe, 2, data) == [(0, 2, 0, 1, 0, 1, True, True), (1, 2, 0, 1, 0, 1, True, True)]


def test_a_failing_rank_ends_all_at_once_with_its_traceback() -> None:
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"(?s)rank 1 failed:.*in fail\b.*ZeroDivisionError"):
        run_ranks(fail, 2, timeout=60.0)
    assert time.monotonic() - began < 50.0


def test_a_rank_that_dies_and_a_rank_that_hangs() -> None:
    with pytest.raises(RuntimeError, match="rank 0 died without a word"):
        run_ranks(die, 1, timeout=60.0)
    with pytest.raises(TimeoutError, match=r"ranks \[0\] did not answer"):
        run_ranks(hang, 1, timeout=1.0)


def describe(rank: int, size: int, port: int, layout: dict[str, int]) -> tuple[int | bool, ...]:
    parallel.start(rank, size, "127.0.0.1", port, timeout=60.0, seed=rank, **layout)  # type: ignore[arg-type] # as above
    for group in (parallel.data_group(), parallel.tensor_group(), parallel.pipeline_group()):
        total = torch.ones(1)
        dist.all_reduce(total, group=group)
        assert total.item() == group.size()
    found = (
        parallel.data_rank(),
        parallel.data_size(),
        parallel.tensor_rank(),
        parallel.tensor_size(),
        parallel.pipeline_rank(),
        parallel.pipeline_size(),
        parallel.is_first_stage(),
        parallel.is_last_stage(),
    )
    parallel.stop()
    assert not dist.is_initialized()
    return found


def fail(rank: int, size: int, port: int) -> None:
    parallel.start(rank, size, "127.0.0.1", port, timeout=60.0)
    if rank == 1:
        raise ZeroDivisionError
    dist.barrier()


def die(rank: int, size: int, port: int) -> None:
    os._exit(3)


def hang(rank: int, size: int, port: int) -> None:
    time.sleep(600)
