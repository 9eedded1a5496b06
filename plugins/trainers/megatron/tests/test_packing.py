"""Bins under a token budget, balance over ranks, and the pack that the model reads."""

import random
from dataclasses import replace

import pytest
import torch

from rlcore.api.batch import TrainBatch
from rlcore.api.errors import DataError
from rlcore_megatron.mcore.packing import balance, check_longest, equal_bins, micro_batches, pack


def _loads(bins: list[list[int]], lengths: list[int]) -> list[int]:
    return [sum(lengths[i] for i in bin) for bin in bins]


def test_every_sample_is_in_one_bin_within_the_budget() -> None:
    draw = random.Random(0)
    for _ in range(50):
        lengths = [draw.randint(1, 40) for _ in range(draw.randint(0, 60))]
        bins = micro_batches(lengths, 100)
        assert sorted(i for bin in bins for i in bin) == list(range(len(lengths)))
        assert all(load <= 100 for load in _loads(bins, lengths))
        assert bins == micro_batches(lengths, 100)
        assert all(bin == sorted(bin) and bin for bin in bins)
        assert len(bins) <= -(-sum(lengths) // 100) * 1.5 + 1


def test_bins_are_balanced() -> None:
    assert sorted(_loads(micro_batches([4, 4, 4, 4, 4, 4], 12), [4] * 6)) == [12, 12]
    lengths = [10] * 11
    assert sorted(_loads(micro_batches(lengths, 100), lengths)) == [50, 60]


def test_bins_are_balanced_by_cost_within_the_budget() -> None:
    draw = random.Random(2)
    for _ in range(50):
        lengths = [draw.randint(1, 90) for _ in range(draw.randint(1, 60))]
        costs = [length + length**2 / 30 for length in lengths]
        bins = micro_batches(lengths, 100, costs)
        assert sorted(i for bin in bins for i in bin) == list(range(len(lengths)))
        assert all(load <= 100 for load in _loads(bins, lengths))
    lengths, costs = [40, 10, 10, 10, 10], [16.0, 1.0, 1.0, 1.0, 1.0]
    assert micro_batches(lengths, 40, costs) == [[0], [1, 2, 3, 4]]
    assert micro_batches([30, 20, 20, 10], 60, [9.0, 4.0, 4.0, 1.0]) == [[0], [1, 2, 3]]
    assert micro_batches([30, 20, 20, 10], 60) == [[0, 3], [1, 2]]


def test_a_sample_over_the_budget_has_a_bin_of_its_own() -> None:
    bins = micro_batches([5, 30, 5], 12)
    assert [1] in bins
    assert len(bins) == 2


def test_a_sample_over_the_context_is_refused() -> None:
    with pytest.raises(DataError, match=r"30 tokens, but the model takes at most 20"):
        check_longest([5, 30, 5], 20)


def test_balance_gives_each_rank_nearly_the_same_tokens() -> None:
    draw = random.Random(1)
    lengths = [draw.randint(1, 100) for _ in range(64)]
    parts = balance(lengths, 4)
    loads = _loads(parts, lengths)
    assert sorted(i for part in parts for i in part) == list(range(64))
    assert max(loads) - min(loads) <= 20
    assert [len(part) for part in balance([7] * 8, 4)] == [2, 2, 2, 2]
    assert balance([3], 2) == [[0], []]


def test_equal_bins_divides_and_then_adds_empty_ones() -> None:
    lengths = [5, 6, 7]
    bins = micro_batches(lengths, 100)
    assert equal_bins(bins, lengths, 1) == [[0, 1, 2]]
    assert equal_bins(bins, lengths, 2) == [[2], [0, 1]]
    assert equal_bins(bins, lengths, 5) == [[2], [1], [0], [], []]
    assert equal_bins([], [], 2) == [[], []]


def _batch() -> TrainBatch:
    return TrainBatch(
        tokens=torch.arange(100, 112),
        prompt_lengths=torch.tensor([2, 3, 1]),
        response_lengths=torch.tensor([3, 0, 3]),
        per_token={"weights": torch.arange(6.0)},
        per_sample={"position": torch.arange(3)},
    )


def test_a_pack_knows_which_logits_predict_which_token() -> None:
    made = pack(_batch(), [2, 0])
    assert made.tokens.tolist() == [[108, 109, 110, 111, 100, 101, 102, 103, 104]]
    assert made.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4]]
    assert made.params.cu_seqlens_q.tolist() == [0, 4, 9]
    assert made.params.max_seqlen_q == 5
    assert made.params.qkv_format == "thd"
    assert made.params.cu_seqlens_q.dtype == torch.int32
    assert made.rows.tolist() == [0, 1, 2, 5, 6, 7]
    assert made.targets.tolist() == [109, 110, 111, 102, 103, 104]
    assert made.batch.per_token["weights"].tolist() == [3.0, 4.0, 5.0, 0.0, 1.0, 2.0]


def test_padding_is_a_sequence_of_its_own() -> None:
    made = pack(_batch(), [1, 0], align=4)
    assert made.tokens.shape == (1, 8)
    assert made.params.cu_seqlens_q.tolist() == [0, 3, 8]
    made = pack(_batch(), [2, 0], align=4)
    assert made.tokens.shape == (1, 12)
    assert made.params.cu_seqlens_q.tolist() == [0, 4, 9, 12]
    assert made.position_ids[0, 9:].tolist() == [0, 1, 2]
    assert made.tokens[0, 9:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("share", [False, True])
def test_a_pack_ahead_reads_the_next_token_and_predicts_the_one_after_it(share: bool) -> None:
    """Samples of one group share their prompt in the pack, but not in what is read ahead."""
    batch = replace(
        _batch(),
        tokens=torch.tensor([7, 8, 100, 101, 102, 7, 8, 110, 111, 120, 130, 131]),
        prompt_lengths=torch.tensor([2, 2, 1]),
        response_lengths=torch.tensor([3, 2, 2]),
        per_token={"loss_mask": torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0])},
        per_sample={"group": torch.tensor([0, 0, 1])},
    )
    made = pack(batch, [0, 1, 2], share=share, ahead=True)
    assert made.ahead is not None
    assert made.tokens[0, made.ahead.places].tolist() == [7, 8, 100, 101, 7, 8, 110, 120, 130]
    assert made.position_ids[0, made.ahead.places].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1]
    assert made.ahead.tokens.tolist() == [8, 100, 101, 102, 8, 110, 111, 130, 131]
    assert made.ahead.params.cu_seqlens_q.tolist() == [0, 4, 7, 9]
    # of each response all but the first token, and but what is masked
    assert made.ahead.targets.tolist() == [101, 111, 131]
    assert made.ahead.tokens[made.ahead.rows].tolist() == [100, 110, 130]
    empty = pack(batch, [], align=2, share=share, ahead=True).ahead
    assert empty is not None
    assert (empty.tokens.tolist(), empty.rows.numel()) == ([0, 0], 0)


def test_an_empty_pack_is_padding_alone() -> None:
    made = pack(_batch(), [], align=2)
    assert made.tokens.tolist() == [[0, 0]]
    assert made.params.cu_seqlens_q.tolist() == [0, 2]
    assert made.rows.numel() == made.targets.numel() == len(made.batch) == 0


def test_samples_without_a_response_predict_nothing() -> None:
    made = pack(_batch(), [1])
    assert made.tokens.tolist() == [[105, 106, 107]]
    assert made.rows.numel() == 0


def test_neighbors_with_one_prompt_share_it() -> None:
    """Groups: 2 samples of prompt (7, 8), 1 of (7, 8), 2 of (9,) whose first has no response."""
    samples = [((7, 8), (1, 2, 3)), ((7, 8), (4,)), ((7, 8), (5, 6)), ((9,), ()), ((9,), (1, 2))]
    batch = TrainBatch(
        tokens=torch.tensor([token for prompt, response in samples for token in prompt + response]),
        prompt_lengths=torch.tensor([len(prompt) for prompt, _ in samples]),
        response_lengths=torch.tensor([len(response) for _, response in samples]),
        per_sample={"group": torch.tensor([0, 0, 1, 2, 2])},
    )
    found = pack(batch, range(5), align=4, share=True)
    assert found.tokens[0].tolist() == [7, 8, 1, 2, 7, 8, 5, 9, 1, 0, 0, 0]
    assert found.position_ids[0].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 0, 1, 2]
    assert found.targets.tolist() == [1, 2, 3, 4, 5, 6, 1, 2]
    assert found.rows.tolist() == [1, 2, 3, 1, 5, 6, 7, 8]
    assert found.params.cu_seqlens_q.tolist() == [0, 4, 7, 9, 12]


def test_prompts_apart_are_not_shared_and_an_empty_pack_is_padding() -> None:
    batch = TrainBatch(
        tokens=torch.tensor([7, 1, 2, 8, 3, 7, 4]),
        prompt_lengths=torch.tensor([1, 1, 1]),
        response_lengths=torch.tensor([2, 1, 1]),
    )
    found = pack(batch, range(3), share=True)
    assert found.tokens[0].tolist() == [7, 1, 8, 7]
    assert found.rows.tolist() == [0, 1, 2, 3]
    assert pack(batch, [], align=2, share=True).tokens.tolist() == [[0, 0]]


@pytest.mark.parametrize(("tokens", "is_shared"), [(7, True), (8, False)])
def test_a_prompt_is_shared_where_it_spares_a_sixteenth(tokens: int, is_shared: bool) -> None:
    response = list(range(tokens))
    batch = TrainBatch(
        tokens=torch.tensor([9, *response, 9, *response]),
        prompt_lengths=torch.tensor([1, 1]),
        response_lengths=torch.tensor([tokens, tokens]),
        per_sample={"group": torch.tensor([0, 0])},
    )
    own = response[:-1]
    assert pack(batch, range(2), share=True).tokens[0].tolist() == [
        9,
        *own,
        *([] if is_shared else [9]),
        *own,
    ]
