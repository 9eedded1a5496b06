"""The grid of configs: every pair of choices, in fewer configs than there are combinations."""

import itertools

from rlcore_megatron.testing.grid import pairwise

AXES = {
    "a": [{"a": 0}, {"a": 1}, {"a": 2}],
    "b": [{"b": 0, "also": 0}, {"b": 1, "also": 1}],
    "c": [{"c": 0}, {"c": 1}],
    "d": [{"d": 0}, {"d": 1}, {"d": 2}],
}


def test_every_pair_of_choices_occurs() -> None:
    grid = dict(pairwise(AXES))
    for first, second in itertools.combinations(AXES, 2):
        for one, other in itertools.product(AXES[first], AXES[second]):
            assert any(fields.items() >= {**one, **other}.items() for fields in grid.values())
    assert len(grid) < 14, "36 combinations"
    assert next(iter(grid.values())) == {"a": 0, "b": 0, "also": 0, "c": 0, "d": 0}


def test_the_same_axes_give_the_same_grid() -> None:
    assert list(pairwise(AXES)) == list(pairwise(AXES))


def test_an_axis_alone() -> None:
    assert [fields for _, fields in pairwise({"a": AXES["a"]})] == AXES["a"]
