"""A batch arrives at a worker as it left."""

import pickle

import torch

from rlcore.api.batch import Columns, TrainBatch
from rlcore.api.columns import Column
from rlcore.workers.sent_batch import from_arrays, to_arrays
from rlcore_testing.items import check_same, with_items

LENGTHS = torch.tensor([2, 1])


def test_a_batch_arrives_as_it_left() -> None:
    columns = {"loss_mask": torch.ones(3), "values": torch.ones(3, dtype=torch.bfloat16)}
    sent = TrainBatch(
        tokens=torch.arange(5),
        prompt_lengths=torch.ones(2, dtype=torch.int64),
        response_lengths=LENGTHS,
        per_token=columns,
        per_sample={"group": LENGTHS},
        per_input={"route": torch.zeros(5, 1, 2, dtype=torch.int16)},
        columns={"route": Column(per="input", dtype="int16", shape=(1, 2), reach="policy")},
    )
    sent = with_items(sent, [0, 3])
    buffers: list[pickle.PickleBuffer] = []
    stored = pickle.dumps(to_arrays(sent), protocol=5, buffer_callback=buffers.append)
    read_only = [bytes(buffer) for buffer in buffers]  # as a store of objects hands them out
    batch = from_arrays(pickle.loads(stored, buffers=read_only))
    assert isinstance(batch.per_token, Columns)
    check_same(batch, sent)
    batch.per_sample["group"][0] = 7
    assert LENGTHS[0] == 2
