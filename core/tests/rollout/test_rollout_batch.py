"""Groups to tensors, worked out by hand, and shares for the ranks."""

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from refusals import Case, cases

from rlcore import Column, DataError, Group, ModelFacts, PluginError, Prompt, Sample, Score, Span, TrainBatch
from rlcore.learning.flops import with_costs
from rlcore.rollout.batch import split, to_batch
from rlcore.rollout.columns import for_trackers
from rlcore_testing.samples import sample_of


def sample(group_id: int, index: int, response: tuple[int, ...], **change: Any) -> Sample:
    made = sample_of(
        response,
        prompt_ids=(100 + group_id,) * (1 + group_id % 3),
        group_id=group_id,
        index=index,
        log_probs=tuple(-token / 10 for token in response),
        spans=(Span(start=0, version=5),),
        score=Score(value=group_id + index / 10),
    )
    return replace(made, **change)


def group(group_id: int, *samples: Sample) -> Group:
    return Group(group_id=group_id, prompt=samples[0].prompt, samples=samples)


def columns(table: Any) -> dict[str, Any]:
    return {name: pytest.approx(column.tolist()) for name, column in table.items()}


def test_by_hand() -> None:
    batch = to_batch(
        [
            group(7, sample(7, 0, (1, 2, 3), loss_mask=(1, 1, 0)), sample(7, 1, (4,))),
            group(9, sample(9, 0, (5, 6), score=Score(value=9.0, per_token=(0.25, 0.75)))),
        ],
        minibatches=2,
        version=5,
    )
    assert batch.tokens.tolist() == [107, 107, 1, 2, 3, 107, 107, 4, 109, 5, 6]
    assert batch.prompt_lengths.tolist() == [2, 2, 1]
    assert batch.response_lengths.tolist() == [3, 1, 2]
    assert columns(batch.per_token) == {
        "loss_mask": [1, 1, 0, 1, 1, 1],
        "rollout_log_probs": [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6],
        "rewards": [0, 7.0, 0, 7.1, 0.25, 0.75],
        "fresh": [1] * 6,
    }
    assert columns(batch.per_sample) == {
        "position": [0, 1, 2],
        "group": [0, 0, 1],
        "rollout": [0, 1, 2],
        "minibatch": [0, 0, 1],
        "reward": [7.0, 7.1, 9.0],
        "version": [5, 5, 5],
    }
    floats = {name: column.dtype for name, column in batch.per_token.items()}
    assert set(floats.values()) == {torch.float32}
    dtypes = {name: column.dtype for name, column in batch.per_sample.items()}
    assert dtypes.pop("reward") == torch.float32
    assert set(dtypes.values()) == {torch.int64}


@pytest.mark.parametrize(
    ("mask", "given", "expected"),
    [
        ((1, 1, 0, 0, 1), (0, 0, 0, 2.0, 1.0), [0, 2, 0, 0, 1]),
        ((0, 1, 1, 0), (0.5, 0, 1.0, 4.0), [0, 0.5, 5, 0]),
        ((1, 0, 1), (1.0, 2.0, 4.0), [3, 0, 4]),
        ((0, 0), (1.0, 2.0), [0, 0]),
    ],
)
def test_rewards_of_turns_stand_on_sampled_tokens(
    mask: tuple[int, ...], given: tuple[float, ...], expected: list[float]
) -> None:
    """What stands on a tool's tokens belongs to the turn before them; nothing of it is lost."""
    ids = tuple(range(len(mask)))
    scored = sample(0, 0, ids, loss_mask=mask, score=Score(value=9.0, per_token=given))
    batch = to_batch([group(0, scored)], minibatches=1, version=5)
    assert batch.per_token["rewards"].tolist() == expected


def test_siblings_share_a_rollout_and_a_response_may_be_dead_or_empty() -> None:
    first, second = sample(0, 0, (1, 2), loss_mask=(0, 0)), sample(0, 1, ())
    third = replace(sample(0, 0, (3,)), rollout_id=first.rollout_id)
    batch = to_batch([group(0, first, second, third)], minibatches=1, version=0)
    assert batch.per_sample["rollout"].tolist() == [0, 1, 0]
    assert batch.per_token["rewards"].tolist() == [0, 0, 0]
    assert batch.per_sample["reward"].tolist() == pytest.approx([0.0, 0.1, 0.0])


@pytest.mark.parametrize(("kept_caches", "mixed"), [(False, [0, 0, 1]), (True, [0, 0, 0])])
def test_fresh_tokens_are_those_of_the_present_weights(kept_caches: bool, mixed: list[float]) -> None:
    spans = (Span(start=0, version=4), Span(start=2, version=5))
    samples = [sample(0, 0, (1, 2, 3), spans=spans), sample(0, 1, (1, 2)), sample(0, 2, ())]
    batch = to_batch([group(0, *samples)], minibatches=1, version=5, kept_caches=kept_caches)
    assert batch.per_token["fresh"].tolist() == [*mixed, 1, 1]


def test_no_groups() -> None:
    batch = to_batch([], minibatches=2, version=0)
    assert len(batch) == batch.tokens.numel() == 0
    assert {column.numel() for column in [*batch.per_token.values(), *batch.per_sample.values()]} == {0}
    assert [len(share) for share in split(batch, 2)] == [0, 0]


def test_extras() -> None:
    samples = [
        sample(0, 0, (1, 2), extras={"turns": 1, "value": (0.5, 1.5), "route": ((1, 2), (3, 4)), "ok": True}),
        sample(0, 1, (3,), extras={"turns": 2, "value": (2.5,), "route": ((5, 6),), "ok": False}),
    ]
    batch = to_batch([group(0, *samples)], minibatches=1, version=0)
    assert batch.per_sample["turns"].tolist() == [1, 2]
    assert batch.per_sample["turns"].dtype == torch.int64
    assert batch.per_sample["ok"].tolist() == [1.0, 0.0]
    assert batch.per_token["value"].tolist() == [0.5, 1.5, 2.5]
    assert batch.per_token["route"].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_an_extra_of_a_response_without_tokens() -> None:
    """It has no entries, of which neither their dtype nor their shape is known."""
    samples = [
        sample(0, 0, (), extras={"id": (), "route": ()}),
        sample(0, 1, (1, 2), extras={"id": (2**40 + 1, 3), "route": ((1, 2), (3, 4))}),
    ]
    batch = to_batch([group(0, *samples)], minibatches=1, version=0)
    assert batch.per_token["id"].tolist() == [2**40 + 1, 3]
    assert batch.per_token["id"].dtype == torch.int64
    assert batch.per_token["route"].tolist() == [[1, 2], [3, 4]]


DECLARED = {
    "patch": Column(per="item", lengths="patches", dtype="bfloat16", shape=(2,), reach="share"),
    "spot": Column(per="item", lengths="patches", dtype="int16"),
    "kind": Column(per="input", dtype="uint8", is_sliced=True),
    "size": Column(per="sample", shape=(2,)),
    "mark": Column(per="token", dtype="int32"),
}


def declared(response: int, count: int, /, **change: Any) -> dict[str, Any]:
    """Extras of a sample with a prompt of one token."""
    return {
        "patch": [[float(n), 0.5] for n in range(count)],
        "spot": list(range(count)),
        "kind": [7] + [8] * response,
        "size": (3, count),
        "mark": list(range(response)),
        **change,
    }


@pytest.mark.parametrize("counts", [(2, 0, 1), (0, 0, 0)])
def test_declared_extras(counts: tuple[int, ...]) -> None:
    """A response may be as long as it has items: the declaration says what they are."""
    tokens = [(1, 2), (), (3,)]
    samples = [
        sample(0, index, ids, extras=declared(len(ids), count))
        for index, (ids, count) in enumerate(zip(tokens, counts, strict=True))
    ]
    batch = to_batch([group(0, *samples)], minibatches=1, version=0, columns=DECLARED)
    assert {name: batch.columns[name] for name in DECLARED} == DECLARED
    assert batch.per_sample["patches"].tolist() == list(counts)
    patch = batch.per_item["patch"]
    assert (patch.dtype, patch.shape) == (torch.bfloat16, (sum(counts), 2))
    assert patch[:, 0].tolist() == [n for count in counts for n in range(count)]
    spot = batch.per_item["spot"]
    assert (spot.dtype, spot.tolist()) == (torch.int16, patch[:, 0].int().tolist())
    assert (batch.per_input["kind"].dtype, len(batch.per_input["kind"])) == (torch.uint8, len(batch.tokens))
    assert batch.per_input["kind"].tolist() == [7, 8, 8, 7, 7, 8]
    assert batch.per_sample["size"].tolist() == [[3, count] for count in counts]
    assert (batch.per_token["mark"].dtype, batch.per_token["mark"].tolist()) == (torch.int32, [0, 1, 0])
    kept = split(batch, 2)
    assert sum(len(share.per_item["patch"]) for share in kept) == sum(counts)


@cases("rollout batch: declared extras")
def test_extras_that_are_not_as_declared(case: Case) -> None:
    bad = sample(0, 0, (1, 2), extras=declared(2, 2, **case.given))
    with case.refused(PluginError):
        to_batch([group(0, bad)], minibatches=1, version=0, columns=DECLARED)


def test_trackers_see_what_losses_see() -> None:
    samples = [sample(0, 0, (1, 2), extras=declared(2, 1)), sample(0, 1, (3,), extras=declared(1, 0))]
    found = for_trackers(samples, {"": {"advantages": torch.tensor([1.0, 2.0, 3.0])}}, DECLARED)
    assert [one.extras["advantages"] for one in found] == [[1.0, 2.0], [3.0]]
    assert [one.extras["spot"] for one in found] == [[0], []]
    assert not any("patch" in one.extras for one in found)
    assert for_trackers(samples, {}, {}) == samples


def test_an_extra_with_the_name_of_a_column_of_the_metadata() -> None:
    bad = with_metadata(0, {"level": 1}, extras={"level": 2})
    with pytest.raises(PluginError, match="'level' has the name of a column that --metadata-columns makes"):
        to_batch([group(0, bad)], minibatches=1, version=0, metadata=("level",))


@cases("rollout batch: bad extras")
def test_bad_extras(case: Case) -> None:
    first, second = case.given
    samples = [sample(0, 0, (1, 2), extras=first), sample(0, 1, (1,), extras=second)]
    with case.refused(PluginError):
        to_batch([group(0, *samples)], minibatches=1, version=0)


def with_metadata(index: int, metadata: dict[str, Any], **change: Any) -> Sample:
    prompt = Prompt(prompt_id=f"p{index}", text="t", metadata=metadata)
    return sample(index, 0, (1, 2), prompt=prompt, **change)


GIVEN = {"spans": (), "log_probs": (), "score": None}


@pytest.mark.parametrize("change", [{}, GIVEN], ids=["rollouts", "given"])
def test_columns_of_the_metadata(change: dict[str, Any]) -> None:
    """Of what was sampled and of what was given; whole numbers stay whole."""
    samples = [
        with_metadata(0, {"weight": 0.5, "level": 2, "other": "x"}, **change),
        with_metadata(1, {"weight": 2, "level": 3}, **change),
    ]
    groups = [group(0, samples[0]), group(1, samples[1])]
    batch = to_batch(groups, minibatches=1, version=0, metadata=("weight", "level"))
    assert torch.equal(batch.per_sample["weight"], torch.tensor([0.5, 2.0]))
    assert torch.equal(batch.per_sample["level"], torch.tensor([2, 3]))
    assert "other" not in batch.per_sample


@cases("rollout batch: bad metadata")
def test_bad_metadata(case: Case) -> None:
    metadata, name = case.given
    with case.refused(DataError):
        to_batch([group(0, with_metadata(0, metadata))], minibatches=1, version=0, metadata=(name,))


def test_per_token_rewards_of_another_length() -> None:
    bad = sample(0, 0, (1, 2), score=Score(value=0.0, per_token=(1.0,)))
    with pytest.raises(PluginError, match=r"1 per-token values to sample 0\.0, which has 2 response tokens"):
        to_batch([group(0, bad)], minibatches=1, version=0)


def uneven() -> TrainBatch:
    groups = [
        group(i, *(sample(i, j, tuple(range(1, 2 + (5 * i + 3 * j) % 11))) for j in range(4)))
        for i in range(6)
    ]
    return to_batch(groups, minibatches=3, version=0)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_shares_are_whole_ordered_and_even(ranks: int) -> None:
    batch = uneven()
    shares = split(batch, ranks)
    assert len(shares) == ranks
    positions = [share.per_sample["position"].tolist() for share in shares]
    assert all(found == sorted(found) for found in positions)
    assert sorted(chain.from_iterable(positions)) == list(range(len(batch)))
    for number in range(3):
        loads = [int(share.lengths[share.per_sample["minibatch"] == number].sum()) for share in shares]
        longest = int(batch.lengths[batch.per_sample["minibatch"] == number].max())
        assert max(loads) - min(loads) <= longest


def test_shares_have_equally_much_of_what_samples_cost() -> None:
    """With attention, one long sample takes as long as several short ones of as many tokens."""
    samples = [sample(0, number, (1,) * length) for number, length in enumerate((40, 20, 20, 10, 10))]
    batch = to_batch([group(0, *samples)], minibatches=1, version=0)
    by_tokens = [share.per_sample["position"].tolist() for share in split(batch, 2)]
    assert by_tokens == [[0, 3], [1, 2, 4]]
    facts = ModelFacts(layers=9, hidden=4, width=4, heads=8, groups=8, head=8, vocabulary=4, tied=True)
    costly = with_costs(batch, facts)
    assert costly.costs[0] > sum(costly.costs[1:]), "attention is all of it"
    assert [share.per_sample["position"].tolist() for share in split(costly, 2)] == [[0], [1, 2, 3, 4]]


def test_shares_carry_their_own_rows() -> None:
    batch = uneven()
    for share in split(batch, 3):
        rows = share.per_sample["position"].tolist()
        same = batch.select(rows)
        assert torch.equal(share.tokens, same.tokens)
        assert torch.equal(share.per_token["rollout_log_probs"], same.per_token["rollout_log_probs"])


def test_fewer_samples_than_ranks() -> None:
    shares = split(to_batch([group(0, sample(0, 0, (1,)))], minibatches=1, version=0), 3)
    assert [len(share) for share in shares] == [1, 0, 0]
