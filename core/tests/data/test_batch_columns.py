"""Columns of a batch."""

import pickle
from typing import Any

import pytest
import torch

from rlcore import Column, PluginError
from rlcore.learning.gather import joined
from rlcore_testing.items import check_same, with_items
from rlcore_testing.tensors import responses


def test_a_column_that_nobody_gave() -> None:
    batch = responses([2, 1]).with_columns(
        per_token={"mark": torch.ones(3), "loss_mask": torch.ones(3)}, per_sample={"reward": torch.ones(2)}
    )
    for kept in (batch, batch.select([1, 0]), pickle.loads(pickle.dumps(batch))):
        with pytest.raises(PluginError) as caught:
            kept.per_token["makr"]
        assert str(caught.value).startswith("The batch has no column 'makr', only ")
        assert "loss_mask, mark" in str(caught.value)
        with pytest.raises(PluginError):
            kept.per_sample["makr"]
        assert "makr" not in kept.per_token
        assert kept.per_sample.get("makr") is None


COUNTS = [2, 0, 1, 3]


def test_items_go_with_their_samples() -> None:
    batch = with_items(responses([2, 1, 3, 1]), COUNTS)
    found = batch.select([3, 1, 0])
    assert found.per_item["marks"].tolist() == [300, 301, 302, 0, 1]
    assert found.per_item["patches"][:, 0, 0].tolist() == found.per_item["marks"].bfloat16().tolist()
    assert found.entries(found.columns["patches"]).tolist() == [3, 0, 2]
    check_same(joined([batch.select([0, 1]), batch.select([]), batch.select([2, 3])]), batch)
    none = batch.select([1])
    assert (none.per_item["patches"].shape, none.per_item["patches"].dtype) == ((0, 2, 3), torch.bfloat16)
    check_same(joined([none, none]).select([1]), none)


def test_long_runs_of_items() -> None:
    """Runs of a thousand items are taken in another way than short ones."""
    batch = with_items(responses([1, 1, 1]), [1000, 0, 900])
    assert torch.equal(batch.select([2, 1, 0]).per_item["marks"][:900], batch.per_item["marks"][1000:])


def test_columns_that_reach_some_models_alone() -> None:
    column = Column(per="input", dtype="int16", reach="policy")
    batch = with_items(responses([2, 1]), [1, 0]).with_columns(
        per_input={"route": torch.ones(5, dtype=torch.int16)}, columns={"route": column}
    )
    assert batch.reaching("all", "share", "policy") is batch
    assert batch.reaching("all", "share").columns.keys() == {"items", "patches", "marks"}
    assert batch.reaching("all").columns.keys() == {"items", "marks"}


def test_a_batch_moves_with_all_of_its_columns() -> None:
    batch = with_items(responses([2, 1]), [1, 0])
    assert batch.to(torch.device("cpu")) is batch
    moved = batch.to(torch.device("meta"))
    assert {column.device.type for table in moved.tables.values() for column in table.values()} == {"meta"}
    assert moved.columns == batch.columns


def test_a_name_stands_for_one_declared_column() -> None:
    batch = responses([2, 1])
    ones, column = torch.ones(5), Column(per="input")
    with pytest.raises(PluginError, match="'route' per input needs a declaration; found none"):
        batch.with_columns(per_input={"route": ones})
    with pytest.raises(PluginError, match=r"'route' per input .* found that name for one per token"):
        batch.with_columns(per_token={"route": ones}, per_input={"route": ones}, columns={"x": column})
    with pytest.raises(PluginError, match=r"'route' per token .* found that name for one per input"):
        batch.with_columns(per_token={"route": ones}, columns={"route": column})


@pytest.mark.parametrize(
    "declared",
    [{"per": "item"}, {"per": "token", "lengths": "items"}, {"per": "token", "is_sliced": True}],
)
def test_a_declaration_that_contradicts_itself(declared: Any) -> None:
    with pytest.raises(PluginError, match=r"of the input can be sliced|names its lengths"):
        Column(**declared)
