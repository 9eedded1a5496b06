"""Packed numbers behave as the tuples that they stand for."""

import copy
import dataclasses
import json
import math
import pickle
from collections.abc import Callable
from operator import add, ne
from typing import Any

import numpy as np
import pytest

from rlcore import (
    Completion,
    Group,
    PackedFlags,
    PackedFloats,
    PackedInts,
    Prompt,
    Sample,
    Span,
)
from rlcore.api.packed import Packed
from rlcore.rollout.batch import flat
from rlcore_sampling.buffer import groups_from_json, groups_to_json
from rlcore_testing.samples import sample_of

INTS = (7, -1, 2**31 - 1, 7, 0)
FLOATS = (-0.1, -1e-300, 0.0, -math.inf, 1 / 3)
KINDS = [
    pytest.param(PackedInts, INTS, id="ints"),
    pytest.param(PackedFlags, (1, 0, 0, 1, 1), id="flags"),
    pytest.param(PackedFloats, FLOATS, id="floats"),
]
READINGS: list[Callable[[Any], Any]] = [
    len,
    tuple,
    list,
    hash,
    lambda one: one[0],
    lambda one: one[-1],
    lambda one: one[1:4],
    lambda one: one[::-2],
    lambda one: one[9:],
    lambda one: add(one, (1,)),
    lambda one: add((1,), one),
    lambda one: one + one,
    lambda one: one * 2,
    lambda one: 2 * one,
    lambda one: (*one, *one),
    lambda one: one.count(one[0]),
    lambda one: one.index(one[3]),
    lambda one: one[2] in one,
    lambda one: "text" in one,
    lambda one: [*reversed(one)],
    lambda one: sorted([one, one[1:], one[:1]]),
    lambda one: one < one[1:],
    lambda one: one >= one[:2],
    lambda one: max(one),
    lambda one: {one: "key"}[tuple(one)],
    lambda one: {tuple(one): "key"}[one],
    lambda one: json.dumps(one, default=list),
    bool,
]


@pytest.mark.parametrize(("kind", "values"), KINDS)
@pytest.mark.parametrize("reading", READINGS)
def test_it_reads_as_a_tuple(kind: type[Packed[Any]], values: tuple[Any, ...], reading: Any) -> None:
    assert reading(kind(values)) == reading(values)


@pytest.mark.parametrize(("kind", "values"), KINDS)
def test_it_is_equal_to_what_holds_the_same(kind: type[Packed[Any]], values: tuple[Any, ...]) -> None:
    packed = kind(values)
    for same in (values, list(values), kind(iter(values)), kind(np.array(values)), packed[:]):
        assert packed == same
        assert same == packed
        assert ne(packed, same) is False
    for other in ((), values[1:], (*values[:-1], 9), list(values[1:]), kind(values[1:]), "text", None):
        assert packed != other
        assert other != packed


def test_kinds_are_compared_by_their_numbers() -> None:
    assert PackedInts((1, 0)) == PackedFlags((1, 0)) == PackedFloats((1.0, -0.0))
    assert PackedFloats((0.0,)) == PackedFloats((-0.0,)) == (0,)


def test_nan_is_what_it_is_in_a_tuple() -> None:
    """Equal to itself, and to what holds the same object; not to another NaN."""
    packed = PackedFloats((math.nan, 1.0))
    assert packed == PackedFloats((math.nan, 1.0)) == (math.nan, 1.0)
    assert hash(packed) == hash(packed[:]) == hash((math.nan, 1.0))
    assert packed != (float("nan"), 1.0)


@pytest.mark.parametrize(("kind", "values"), KINDS)
def test_it_travels(kind: type[Packed[Any]], values: tuple[Any, ...]) -> None:
    packed = kind(values)
    for travelled in (
        pickle.loads(pickle.dumps(packed)),
        copy.deepcopy(packed),
        kind.from_bytes(packed.to_bytes()),
    ):
        assert type(travelled) is kind
        assert travelled.to_bytes() == packed.to_bytes()


def test_its_bytes_are_little_endian() -> None:
    assert PackedInts((1, 256)).to_bytes() == b"\x01\0\0\0\0\x01\0\0"
    with pytest.raises(ValueError, match="multiple of item size"):
        PackedInts.from_bytes(b"12345")


@pytest.mark.parametrize(("kind", "values"), KINDS)
def test_it_cannot_be_changed(kind: type[Packed[Any]], values: tuple[Any, ...]) -> None:
    packed: Any = kind(values)
    with pytest.raises(TypeError):
        packed[0] = 1
    with pytest.raises(TypeError):
        packed.memory[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(packed)[0] = 1
    longer = packed
    longer += packed
    assert (len(packed), len(longer)) == (len(values), 2 * len(values))


def test_what_it_cannot_hold_is_refused() -> None:
    with pytest.raises(OverflowError):
        PackedInts((2**31,))
    with pytest.raises(TypeError):
        PackedInts((0.5,))  # type: ignore[arg-type] # what is tested
    with pytest.raises(TypeError, match="found bytes"):
        PackedInts(b"1234")


def test_a_list_stays_a_list() -> None:
    found = [1]
    found += PackedInts((2, 3))
    assert found == [1, 2, 3]
    assert type(found) is list
    with pytest.raises(TypeError):
        add([1], PackedInts((2,)))


def test_numpy_reads_it_in_place() -> None:
    packed = PackedFloats(FLOATS)
    assert np.shares_memory(np.asarray(packed), np.asarray(packed))
    assert np.asarray(packed).dtype == np.float64
    assert np.asarray(packed, dtype=np.float32).dtype == np.float32
    assert np.asarray(PackedFlags()).shape == (0,)


def test_rows_end_to_end() -> None:
    rows = [(1, 2), PackedInts((3,)), (), *[(number,) for number in range(200)]]
    found = flat(PackedInts, rows, 203, np.int64)
    assert found.dtype == np.int64
    assert found.tolist() == [1, 2, 3, *range(200)]
    assert flat(PackedInts, [], 0, np.int64).shape == (0,)


# --- in the nouns --------------------------------------------------------------------------------------


def sample(tokens: int = 3) -> Sample:
    return sample_of(
        tuple(range(1000, 1000 + tokens)),
        prompt_ids=(1, 2),
        log_probs=tuple(-1 / (3 + place) for place in range(tokens)),
        spans=(Span(start=0, version=4),),
    )


def test_a_sample_packs_what_it_is_given() -> None:
    one = sample()
    for made in (
        one,
        dataclasses.replace(one, response_ids=(1, 2, 3)),
        one.but(response_ids=(1, 2, 3), loss_mask=(1, 1, 1)),
        pickle.loads(pickle.dumps(one)),
    ):
        assert type(made.response_ids) is PackedInts
        assert type(made.loss_mask) is PackedFlags
        assert type(made.log_probs) is PackedFloats
    assert one.prompt_ids + one.response_ids == (1, 2, 1000, 1001, 1002)
    assert type(one.prompt_ids + one.response_ids) is tuple
    assert one == sample()
    assert dataclasses.asdict(one)["response_ids"] == (1000, 1001, 1002)


def test_a_completion_packs_what_it_is_given() -> None:
    done = Completion(
        token_ids=(1, 2), log_probs=(-0.5, -0.25), text="", finish_reason="stop", spans=(), prompt_tokens=1
    )
    assert (type(done.token_ids), type(done.log_probs)) == (PackedInts, PackedFloats)


def test_a_token_takes_few_bytes() -> None:
    one = sample(10_000)
    assert len(pickle.dumps(one)) < 13.1 * 10_000


def test_a_group_comes_back_from_json_bit_for_bit() -> None:
    group = Group(group_id=0, prompt=Prompt(prompt_id="p", text="q"), samples=(sample(),))
    text = json.dumps(groups_to_json([group]))
    (found,) = groups_from_json(json.loads(text))
    assert found == group
    assert type(found.samples[0].log_probs) is PackedFloats
    assert json.loads(text)[0]["samples"][0]["response_ids"] == [1000, 1001, 1002]


def test_runs_of_versions() -> None:
    spans = (Span(start=0, version=3), Span(start=1, version=5))
    one = dataclasses.replace(sample(), spans=spans)
    assert one.version_runs == ((3, 1), (5, 2))
    assert one.token_versions == (3, 5, 5)
