"""Bins under a token budget, balance over ranks, and the pack that the model reads."""

from dataclasses import replace

import pytest
import torch

from rlcore import Column, TrainBatch
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.packs.narrowing import narrow
from rlcore_megatron.mcore.packs.packing import pack
from rlcore_testing.items import with_items


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


def _with_inputs() -> TrainBatch:
    """A column of inputs that are sliced, one of those that are not, and items."""
    kinds = torch.arange(24, dtype=torch.int16).view(12, 2)
    sliced = Column(per="input", padding=(5, 6), is_sliced=True)
    return with_items(_batch(), [2, 0, 1]).with_columns(
        per_input={"kinds": kinds, "all": kinds}, columns={"kinds": sliced, "all": Column(per="input")}
    )


def test_a_pack_has_the_columns_that_the_model_reads() -> None:
    batch = _with_inputs()
    found = pack(batch, [2, 0], align=4, columns=["kinds", "patches"])
    assert found.inputs.keys() == {"kinds", "patches"}
    assert found.inputs["kinds"][:, 0].tolist() == [16, 18, 20, 22, 0, 2, 4, 6, 8, 5, 5, 5]
    assert found.inputs["kinds"][9:].tolist() == [[5, 6]] * 3
    assert found.inputs["kinds"].dtype == torch.int16
    assert found.inputs["patches"][:, 0, 0].tolist() == [200, 0, 1]
    assert found.batch.per_item["marks"].tolist() == [200, 0, 1]
    assert "patches" not in found.batch.columns, "a loss reads what reaches all"
    assert pack(batch, [1], columns=["patches"]).inputs["patches"].shape == (0, 2, 3)
    assert pack(batch, [], align=2, columns=["kinds"]).inputs["kinds"].tolist() == [[5, 6]] * 2


def test_a_shared_prompt_has_the_entries_of_its_first_sample() -> None:
    batch = replace(
        _with_inputs(),
        tokens=torch.tensor([*range(50), 1, 2, *range(50), 3, 4]),
        prompt_lengths=torch.tensor([50, 50]),
        response_lengths=torch.tensor([2, 2]),
        per_token={},
        per_sample={"items": torch.tensor([1, 1]), "group": torch.tensor([0, 0])},
        per_input={"kinds": torch.arange(104)},
        per_item={"patches": torch.zeros(2, 2, 3)},
        columns={"kinds": Column(per="input"), "patches": _with_inputs().columns["patches"]},
    )
    kinds = pack(batch, [0, 1], share=True, columns=["kinds"]).inputs["kinds"]
    assert kinds.tolist() == [*range(51), 102]
    whole = pack(batch, [0, 1], share=True, columns=["kinds", "patches"])
    assert whole.inputs["kinds"].tolist() == list(range(104)), "the prompts may show other images"
    assert whole.params.cu_seqlens_q.tolist() == [0, 52, 104]


@pytest.mark.parametrize("rank", [0, 1])
def test_context_parallelism_slices_what_is_declared_so(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    monkeypatch.setattr(parallel, "context_size", lambda: 2)
    monkeypatch.setattr(parallel, "context_rank", lambda: rank)
    full = pack(_with_inputs(), [2, 0], align=4, columns=["kinds", "all", "patches"])
    found = narrow(full)
    places = [0, 1, 2, 9, 10, 11] if rank == 0 else [3, 4, 5, 6, 7, 8]
    assert torch.equal(found.tokens, full.tokens[:, places])
    assert torch.equal(found.inputs["kinds"], full.inputs["kinds"][places])
    assert found.inputs["all"] is full.inputs["all"]
    assert found.inputs["patches"] is full.inputs["patches"]
