"""Make a column of the batch from the experts that an engine chose."""

import base64
import binascii
from collections.abc import Sequence

import numpy as np
import torch

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import ROUTED_EXPERTS, Column
from rlcore.api.errors import EngineError, PluginError
from rlcore.api.types import Sample


def expert_column(layers: int, top_k: int) -> Column:
    """The declaration of `rlcore.ROUTED_EXPERTS` for a model. A token without experts gets the first ones."""
    return Column(
        per="input",
        dtype="int16",
        shape=(layers, top_k),
        padding=tuple(range(top_k)),
        is_sliced=True,
        reach="policy",
    )


def with_experts(batch: TrainBatch, samples: Sequence[Sample], column: Column) -> TrainBatch:
    """`batch` of `samples` with `rlcore.ROUTED_EXPERTS`, as `column` declares it.

    An engine never reads the last token of a sample, so that token gets the padding. This does no harm: no
    trained token follows it. PluginError where a sample has experts for too few tokens, EngineError where
    they do not fit the shape.
    """
    assert column.shape is not None, "`expert_column` declares it"
    experts = np.empty((len(batch.tokens), *column.shape), dtype=np.int16)
    experts[:] = column.padding
    start = 0
    for sample, length in zip(samples, batch.lengths.tolist(), strict=True):
        answer = _decoded(sample, *column.shape)[:length]
        experts[start : start + len(answer)] = answer
        start += length
    tensors = {ROUTED_EXPERTS: torch.from_numpy(experts)}
    return batch.with_columns(per_input=tensors, columns={ROUTED_EXPERTS: column})


def _decoded(sample: Sample, layers: int, top_k: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.int32]]:
    """The experts that the engine has chosen, int32 [tokens, layers, top_k]."""
    try:
        answer = sample.engine_columns.get(ROUTED_EXPERTS, "")
        flat = np.frombuffer(base64.b64decode(answer, validate=True), dtype="<i4")
    except (binascii.Error, ValueError) as error:
        raise EngineError(f"The experts of sample {sample.rollout_id} are no int32: {error}.") from error
    if flat.size % (layers * top_k):
        raise EngineError(
            f"Sample {sample.rollout_id} has {flat.size} routed experts, expected a multiple of {layers} "
            f"layers times {top_k} experts of a token."
        )
    experts = flat.reshape(-1, layers, top_k)
    live = np.flatnonzero(sample.loss_mask)
    needed = len(sample.prompt_ids) + int(live[-1]) if len(live) else 0
    if len(experts) < needed:
        raise PluginError(
            f"Sample {sample.rollout_id} has the experts of {len(experts)} tokens, but {needed} stand before "
            "its last one to train on: a generator hands on the engine_columns of its last completion."
        )
    return experts
