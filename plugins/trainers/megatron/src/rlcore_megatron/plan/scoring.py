"""Bytes that a model which only scores has at one time, without a backward pass: moment by moment."""

from collections.abc import Iterator

from rlcore import ExpertFacts, LatentFacts, ModelFacts
from rlcore_megatron.plan.activations import (
    FLOAT,
    GATED,
    LONG,
    Batch,
    columns,
    gathered,
    in_chunks,
    logits,
    shared_places,
    split_tokens,
    vectors,
)
from rlcore_megatron.plan.delta import DeltaBytes
from rlcore_megatron.plan.layout import Layout
from rlcore_toolkit import ROWS_AT_ONCE

GATED_IN_KERNELS = 4
"""The same as `GATED`, where the CPU's kernels compute the product."""
IDS = 5
"""Tensors of token ids and places that a micro-batch brings."""
CHUNK = 1 << 22
"""Logits that exist in fp32 at one time, where they are not made in chunks."""


def scoring(facts: ModelFacts, layout: Layout, batch: Batch, stage: int) -> int:
    """The most bytes at one time of one micro-batch on a rank of pipeline stage `stage`."""
    split, layers = split_tokens(layout, batch), layout.layers(facts, stage)
    residual = split * facts.hidden * batch.bytes
    turned = facts.latent.rotated if facts.latent else facts.head
    tables = batch.tokens * (turned + turned // 2) * batch.bytes
    moments = []
    for place, number in enumerate(layers):
        held = tables + residual * (1 if place == 0 else 2)  # what enters the stage, and the layer
        moments += [held + moment for moment in _layer(facts, layout, batch, number)]
    if stage == layout.pipeline - 1:
        moments.append(_head(facts, layout, batch))
    ids = layout.context * batch.tokens * IDS * LONG + shared_places(layout, batch)
    return ids + max(moments, default=0)


def _layer(facts: ModelFacts, layout: Layout, batch: Batch, number: int) -> Iterator[int]:
    """In attention; in the MLP, beside the residual."""
    if facts.delta is not None and number in facts.delta.layers:
        most = DeltaBytes.of(facts.delta, layout.tensor, batch.bytes).scoring
        yield split_tokens(layout, batch) * facts.hidden * batch.bytes + batch.tokens * most
    else:
        yield from _attention(facts, layout, batch)
    experts, residual = facts.experts, split_tokens(layout, batch) * facts.hidden * batch.bytes
    if experts is not None and number >= experts.first_dense:
        # beside what the norm gave, and the shared experts
        outer = 3 if experts.shared else 2
        yield outer * residual + _experts(facts, experts, layout, batch)
    else:
        gated = GATED_IN_KERNELS if batch.in_kernels and not facts.gelu else GATED
        yield residual + batch.tokens * gated * facts.width // layout.tensor * batch.bytes


def _attention(facts: ModelFacts, layout: Layout, batch: Batch) -> Iterator[int]:
    heads, waiting = facts.heads // layout.tensor, 0
    keys, values = vectors(facts, layout)
    if latent := facts.latent:
        # what the norm gave, and, while heads are made, the compressed vectors and the linear layer's queries
        split = split_tokens(layout, batch)
        waiting, compressed = split * facts.hidden, split * (latent.key_value + latent.rotated)
        plain, padded = _latent(latent)
        linear = latent.unrotated + latent.rotated
        yield (waiting + compressed + batch.tokens * heads * (plain + linear)) * batch.bytes
        made, output = heads * (plain + padded), values  # padded as they are
    else:
        output = queries = heads * facts.head
        made = (queries + 2 * keys) + (queries + keys)  # what the linear layer gave, and turned
        made += queries if facts.output_gate else 0
        if facts.qk_norm:
            made += queries + keys
        elif facts.groups > layout.tensor:
            made += queries  # a copy
    own = (waiting + batch.tokens * made) * batch.bytes
    if layout.context > 1:
        own += batch.read * keys * batch.bytes
        yield own + gathered(facts, layout, batch)
        own += batch.read * values * batch.bytes
    yield own + batch.tokens * (output * batch.bytes + heads * FLOAT)  # and log-sums


def _latent(latent: LatentFacts) -> tuple[int, int]:
    """Numbers of a head: queries, keys, and what keys and values come from; values padded for the kernel."""
    inner = latent.unrotated + latent.rotated
    return 2 * inner + latent.unrotated + latent.value, inner if latent.value < inner else 0


def _experts(facts: ModelFacts, experts: ExpertFacts, layout: Layout, batch: Batch) -> int:
    """The bytes while the second matrix of each is multiplied."""
    routed, cut = split_tokens(layout, batch) * experts.active, layout.expert_tensor
    # outside of a GPU's kernel for all experts, of each expert and then joined
    outputs = 1 if batch.bytes != FLOAT and not batch.on_cpu else 2
    hidden = (1 + cut + outputs * cut) * facts.hidden
    router = experts.count * (FLOAT + 1) + experts.active * (LONG + 2 * FLOAT)
    return routed * (hidden + 4 * experts.width) * batch.bytes + split_tokens(layout, batch) * router


def _head(facts: ModelFacts, layout: Layout, batch: Batch) -> int:
    """The logits, when the layers are done."""
    if in_chunks(facts, layout, batch):
        narrow = 0 if batch.bytes == FLOAT else batch.bytes
        rows = batch.rows * facts.hidden * batch.bytes
        return rows + columns(facts, layout) * ROWS_AT_ONCE * (narrow + FLOAT)
    whole = logits(facts, layout, batch)
    return whole + min(CHUNK, whole // batch.bytes) * FLOAT
