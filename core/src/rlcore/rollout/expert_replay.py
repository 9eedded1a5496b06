"""Make a column of the batch from the experts that an engine chose."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlcore.api.errors import EngineError, PluginError
from rlcore.api.types import Sample


def routed_experts(samples: Sequence[Sample], layers: int, top_k: int) -> Tensor:
    """`rlcore.ROUTED_EXPERTS` of `samples`: int16 [sum(P_i + R_i), layers, top_k].

    An engine never reads the last token of a sample, so that token gets the experts 0 … top_k - 1. This does
    no harm: no trained token follows it. PluginError where a sample has experts for too few tokens,
    EngineError where they do not fit `layers` and `top_k`.
    """
    lengths = [len(sample.prompt_ids) + len(sample.response_ids) for sample in samples]
    column = np.empty((sum(lengths), layers, top_k), dtype=np.int16)
    column[:] = np.arange(top_k, dtype=np.int16)
    start = 0
    for sample, length in zip(samples, lengths, strict=True):
        experts = _decoded(sample, layers, top_k)[:length]
        column[start : start + len(experts)] = experts
        start += length
    return torch.from_numpy(column)


def _decoded(sample: Sample, layers: int, top_k: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.int32]]:
    """int32 [tokens, layers, top_k]."""
    try:
        flat = np.frombuffer(base64.b64decode(sample.routed_experts, validate=True), dtype="<i4")
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
            "its last one to train on: a generator hands on the routed_experts of its last completion."
        )
    return experts
