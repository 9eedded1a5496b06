"""Columns of a batch."""

import pickle

import pytest
import torch

from rlcore.api.errors import PluginError
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
