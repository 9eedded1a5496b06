"""A batch arrives at a worker as it left."""

import pickle

import torch
from torch import Tensor

from rlcore import TrainBatch
from rlcore.api.batch import Columns
from rlcore.runtime.sent_batch import from_arrays, to_arrays

LENGTHS = torch.tensor([2, 1])


def test_a_batch_arrives_as_it_left() -> None:
    columns = {"loss_mask": torch.ones(3), "values": torch.ones(3, dtype=torch.bfloat16)}
    sent = TrainBatch(
        tokens=torch.arange(5),
        prompt_lengths=torch.ones(2, dtype=torch.int64),
        response_lengths=LENGTHS,
        per_token=columns,
        per_sample={"group": LENGTHS},
        per_input={"routed_experts": torch.zeros(5, 1, 2, dtype=torch.int16)},
    )
    buffers: list[pickle.PickleBuffer] = []
    stored = pickle.dumps(to_arrays(sent), protocol=5, buffer_callback=buffers.append)
    read_only = [bytes(buffer) for buffer in buffers]  # as a store of objects hands them out
    batch = from_arrays(pickle.loads(stored, buffers=read_only))
    assert isinstance(batch.per_token, Columns)
    for name, value in vars(sent).items():
        for key, tensor in _named(value).items():
            torch.testing.assert_close(_named(getattr(batch, name))[key], tensor, rtol=0, atol=0)
    batch.per_sample["group"][0] = 7
    assert LENGTHS[0] == 2


def _named(value: Tensor | dict[str, Tensor]) -> dict[str, Tensor]:
    return {"": value} if isinstance(value, Tensor) else value
