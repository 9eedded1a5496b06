"""Columns of what an engine chose for the tokens of each sample. Core carries them; a trainer reads them."""

import base64
import binascii
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import Column
from rlcore.api.errors import EngineError
from rlcore.api.types import Sample


def with_choices(batch: TrainBatch, samples: Sequence[Sample], names: Iterable[str]) -> TrainBatch:
    """`batch` of `samples` with the columns `names` (of `rlcore.REPLAYS`), which their engine gave.

    EngineError where an answer is no base64.
    """
    for name in sorted(names):
        answers = [_decoded(sample, name) for sample in samples]
        column = Column(per="item", lengths=f"{name}_bytes", dtype="uint8", shape=(), reach="policy")
        sizes = torch.tensor([len(answer) for answer in answers])
        items = torch.from_numpy(np.frombuffer(b"".join(answers), dtype=np.uint8).copy())
        batch = batch.with_columns(
            {}, {column.lengths: sizes}, per_item={name: items}, columns={name: column}
        )
    return batch


def _decoded(sample: Sample, name: str) -> bytes:
    try:
        return base64.b64decode(sample.engine_columns.get(name, ""), validate=True)
    except binascii.Error as error:
        raise EngineError(f"The {name} of sample {sample.rollout_id} are no base64: {error}.") from error
