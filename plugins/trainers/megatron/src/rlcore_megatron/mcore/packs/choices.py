"""From the bytes of what an engine chose to columns by token, checked against the model."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from numpy.typing import NDArray
from transformers import PretrainedConfig

from rlcore import INDEXER_TOPK, ROUTED_EXPERTS, Column, RunError, TrainBatch
from rlcore_toolkit import indexed_layers, unpacked_keys

Chosen = NDArray[Any]
"""[tokens, layers, N]: what was chosen for the first tokens of a sample."""
TOKENS = Column(per="input", is_sliced=True, reach="policy")
"""What the declarations have in common."""
_ONES = np.array([number.bit_count() for number in range(256)], dtype=np.uint8)


def read_choices(
    batch: TrainBatch, names: Collection[str], config: TransformerConfig, hf_config: PretrainedConfig
) -> TrainBatch:
    """`batch` with the columns `names` by token, in place of an engine's bytes.

    `ROUTED_EXPERTS` int16 [T, layers, K]; `INDEXER_TOPK` uint8 [T, indexers, W], a bit for each position of
    the sample. A token that the engine did not read, as the last of each sample, has the first experts, and
    no keys: no trained token follows it. RunError where choices are missing, or are not of this model.
    """
    if ROUTED_EXPERTS in names:
        shape, padding = (config.num_layers, config.moe_router_topk), tuple(range(config.moe_router_topk))
        column = replace(TOKENS, dtype="int16", shape=shape, padding=padding)
        batch = _with_column(batch, ROUTED_EXPERTS, column, lambda data: _experts(data, config))
    if INDEXER_TOPK in names:
        shape = (len(indexed_layers(hf_config.to_dict())), -(-int(batch.lengths.max()) // 8))
        column = replace(TOKENS, dtype="uint8", shape=shape)
        batch = _with_column(
            batch, INDEXER_TOPK, column, lambda data: _keys(data, *shape, hf_config.index_topk)
        )
    return batch


def _with_column(batch: TrainBatch, name: str, column: Column, read: Callable[[bytes], Chosen]) -> TrainBatch:
    if name not in batch.per_item:
        raise RunError(f"The {name} shall be replayed, but the batch has none that an engine chose.")
    assert column.shape is not None
    entries = np.empty((len(batch.tokens), *column.shape), dtype=column.dtype)
    entries[:] = column.padding
    sizes = batch.per_sample[batch.columns[name].lengths].tolist()
    answers = torch.split(batch.per_item[name], sizes)
    starts = (batch.lengths.cumsum(0) - batch.lengths).tolist()
    for number, (answer, start, needed) in enumerate(zip(answers, starts, _needed(batch), strict=True)):
        try:
            chosen = read(answer.numpy().tobytes())[: int(batch.lengths[number])]
            if len(chosen) < needed:
                raise ValueError(
                    f"they are of {len(chosen)} tokens, but {needed} stand before the last one to train on: "
                    "a generator hands on the engine_columns of its last completion"
                )
        except ValueError as error:
            raise RunError(f"The {name} of sample {number} of the batch do not fit: {error}.") from error
        entries[start : start + len(chosen)] = chosen
    return replace(
        batch,
        per_input={**batch.per_input, name: torch.from_numpy(entries)},
        per_item={other: items for other, items in batch.per_item.items() if other != name},
        columns={**batch.columns, name: column},
    )


def _needed(batch: TrainBatch) -> list[int]:
    """How many tokens stand before the last one of each sample that is trained on."""
    masks = batch.per_token.get("loss_mask", torch.ones(int(batch.response_lengths.sum())))
    live = [mask.nonzero().flatten().tolist() for mask in torch.split(masks, batch.response_lengths.tolist())]
    prompts = batch.prompt_lengths.tolist()
    return [prompt + places[-1] if places else 0 for prompt, places in zip(prompts, live, strict=True)]


def _experts(data: bytes, config: TransformerConfig) -> Chosen:
    """int32 [tokens, layers, K]."""
    experts = np.frombuffer(data, dtype="<i4").reshape(-1, config.num_layers, config.moe_router_topk)
    chosen = np.sort(experts[:, np.array(config.moe_layer_freq, dtype=bool)], axis=-1)
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < config.num_moe_experts:
        raise ValueError(
            f"experts from {chosen.min()} to {chosen.max()}, but the model has {config.num_moe_experts}"
        )
    if bool((np.diff(chosen, axis=-1) == 0).any()):
        raise ValueError("an expert twice for one token")
    return experts


def _keys(data: bytes, indexers: int, width: int, top: int) -> Chosen:
    """uint8 [tokens, indexers, width]."""
    keys = unpacked_keys(data, indexers, width)[: 8 * width]
    places = np.arange(len(keys))
    counts = _ONES[keys].sum(-1, dtype=np.int64)
    later = keys[places, :, places // 8] >> (places % 8 + 1)[:, None].astype(np.uint8)
    wrong = (counts != np.minimum(places + 1, top)[:, None]) | (later > 0)
    if bool(wrong.any()):
        token, indexer = (int(place) for place in np.argwhere(wrong)[0])
        raise ValueError(
            f"token {token} has {counts[token, indexer]} keys, expected {min(token + 1, top)}, none behind it"
        )
    return keys
