"""Which tokens of a pack a context-parallel rank holds, and what they see."""

import pytest
import torch

from rlcore_megatron.mcore.packs.context import Share
from rlcore_megatron.mcore.packs.sequences import Sequences, keep_share


def test_each_rank_takes_a_run_from_the_front_and_one_from_the_back() -> None:
    assert [Share(16, 2, rank).places.tolist() for rank in range(2)] == [
        [0, 1, 2, 3, 12, 13, 14, 15],
        [4, 5, 6, 7, 8, 9, 10, 11],
    ]


@pytest.mark.parametrize(("total", "ranks"), [(16, 2), (24, 3), (8, 4), (12, 1)])
def test_the_parts_together_are_the_pack(total: int, ranks: int) -> None:
    parts = torch.cat([Share(total, ranks, rank).places for rank in range(ranks)])
    assert parts[Share(total, ranks, 0).order].tolist() == list(range(total))
    pairs = [sum(Share(total, ranks, rank).places.tolist()) for rank in range(ranks)]
    assert len(set(pairs)) == 1, "as many tokens lie before those of each rank"


@pytest.mark.parametrize("lengths", [(16,), (5, 7, 4), (1, 1, 14), (8, 8), (3, 0, 13)])
def test_each_token_sees_its_sequence_up_to_itself(lengths: tuple[int, ...]) -> None:
    starts = torch.tensor([0, *lengths]).cumsum(0)
    first = {token: int(starts[starts <= token].max()) for token in range(16)}
    for rank in range(2):
        share = Share(16, 2, rank)
        seen = {}
        for start, length, before, count in share.pieces(starts.tolist()):
            for step in range(length):
                seen[int(share.places[start + step])] = (before, before + count + step)
        assert seen == {token: (first[token], token) for token in share.places.tolist()}


def test_positions_and_what_a_gpu_reads() -> None:
    from megatron.core.packed_seq_params import PackedSeqParams

    starts = torch.tensor([0, 5, 12, 16], dtype=torch.int32)
    params = PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q=7, max_seqlen_kv=7
    )
    keep_share(params, Share(16, 2, 1))  # tokens 4 to 11: the last of the first sequence, seven of the second
    pack = Sequences.of(params, 8)
    assert pack.positions.tolist() == [4, 0, 1, 2, 3, 4, 5, 6]
    ends_q, ends_k, places = pack.seen
    assert ends_q.tolist() == [0, 1, 4, 8]
    assert ends_k.tolist() == [0, 5, 8, 15]
    assert places.tolist() == [*range(5), *range(5, 8), *range(5, 12)]
