"""Bytes that the trainer keeps of micro-batches for the backward pass, tensor by tensor.

What the megatron trainer saves on plain torch: every norm keeps its input (in fp32) and what the next linear
layer reads, the gated MLP five times its width, attention queries, keys, values and its output.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlcore import DeltaFacts, ExpertFacts, LatentFacts, ModelFacts
from rlcore_megatron.plan.adapters import Adapted, adapter_numbers
from rlcore_megatron.plan.delta import DeltaBytes
from rlcore_megatron.plan.indexers import masks, seen_keys, taught
from rlcore_megatron.plan.layout import Layout, Recompute
from rlcore_toolkit import MOST_LOGITS, ROWS_AT_ONCE

FLOAT, LONG = 4, 8
GATED, GATED_ON_CPU = 5, 3
"""Widths of a gated MLP: gate and up (2), the product, and both halves as they are multiplied (2)."""
GATED_CLAMPED = 4
"""Widths of a clamped MLP, which keeps no half by itself."""
CHUNKS = 3
"""Tensors of the size of a chunk of logits that exist at once."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """`tokens` of a micro-batch on each context-parallel rank, `rows` of which predict response tokens.

    `seen`: tokens whose keys and values attention reads there; None: `tokens`. `longest`: tokens of the
    longest sample; None: it fills a micro-batch. `bytes`: of a number of the parameters' dtype, 4 or 2.
    `on_cpu`: with the CPU's kernels for fp32. `adapter`: what trains in place of the weights.
    `teaches_indexers`: those of sparse attention learn.
    """

    tokens: int
    rows: int
    bytes: int
    seen: int | None = None
    longest: int | None = None
    on_cpu: bool = False
    adapter: Adapted | None = None
    teaches_indexers: bool = False

    @property
    def read(self) -> int:
        """Tokens of which attention has keys and values."""
        return self.tokens if self.seen is None else self.seen

    @property
    def in_kernels(self) -> bool:
        """Whether the CPU's kernels compute norms and gated MLPs."""
        return self.on_cpu and self.bytes == FLOAT


def saved(
    facts: ModelFacts, layout: Layout, batch: Batch, stage: int, *, waiting: float = 1, values: bool = False
) -> int:
    """The most bytes at one time on a rank of pipeline stage `stage`, with `waiting` micro-batches open.

    `values`: of a critic.
    """
    layers = [_layer(facts, layout, batch, number) for number in layout.layers(facts, stage)]
    each, recompute, head = [kept for kept, _ in layers], layout.recompute, 0
    kept, again = sum(each), 0
    if recompute is not None and recompute.modules:
        # the layers behind the one that is computed again are done with by then
        redone = (again - sum(each[place + 1 :]) for place, (_, again) in enumerate(layers))
        again = max(redone, default=0)  # a stage may have none, but the embedding or the head
    elif recompute is not None:
        size = split_tokens(layout, batch) * facts.hidden * batch.bytes
        size //= layout.tensor if recompute.distributed else 1
        kept, again = _recomputed(each, recompute, layout.virtual, size)
    if stage == layout.pipeline - 1:
        head = _values(facts, layout, batch) if values else _head(facts, layout, batch)
        if layout.mtp and not values:
            head += _prediction(facts, layout, batch)
    # a backward pass has done with the head before it computes layers again; both are of one micro-batch
    return int((kept + _tables(facts, layout, batch)) * waiting) + max(head, again)


def _recomputed(each: Sequence[int], recompute: Recompute, chunks: int, size: int) -> tuple[int, int]:
    """What waits of layers that save `each`, with inputs of `size`; and the most that is computed again."""
    kept = again = 0
    count = max(1, recompute.layers)
    chunk = max(1, -(-len(each) // chunks))
    for start in range(0, len(each), chunk):
        layers = each[start : start + chunk]
        if recompute.block:
            kept += sum(layers[count:])
            pieces = list(layers[:count])
            # the layers behind them are done with by then
            again = max(again, max(pieces, default=0) - sum(layers[count:]))
        else:
            pieces = [sum(layers[first : first + count]) for first in range(0, len(layers), count)]
            again = max(again, *pieces)
        kept += len(pieces) * size
    return kept, again


def workspace(facts: ModelFacts, layout: Layout, batch: Batch, stage: int, *, values: bool = False) -> int:
    """Bytes of what exists for a moment: the gradient of the logits, which a critic (`values`) has not.

    Or what context-parallel ranks gather. Where the logits are made in chunks, the output matrix's gradient
    in fp32 (unless it is frozen), and of a chunk the logits, the log-probs and their gradient.
    """
    return max(gathered(facts, layout, batch), 0 if values else _of_logits(facts, layout, batch, stage))


def gathered(facts: ModelFacts, layout: Layout, batch: Batch) -> int:
    """Bytes of values as context-parallel ranks gather them, put them in order and choose what they see."""
    if layout.context == 1:
        return 0
    whole = layout.context * batch.tokens
    return (whole + max(whole, batch.read)) * vectors(facts, layout)[1] * batch.bytes


def vectors(facts: ModelFacts, layout: Layout) -> tuple[int, int]:
    """Numbers of a token's keys and of its values on a rank, as attention reads them."""
    if latent := facts.latent:
        heads, inner = facts.heads // layout.tensor, latent.unrotated + latent.rotated
        return heads * inner, heads * max(inner, latent.value)  # padded where they are narrower than keys
    keys = facts.groups // layout.tensor * facts.head
    return keys, keys


def _of_logits(facts: ModelFacts, layout: Layout, batch: Batch, stage: int) -> int:
    if stage != layout.pipeline - 1:
        return 0
    width, chunks = columns(facts, layout), CHUNKS * ROWS_AT_ONCE * FLOAT
    # multi-token prediction makes its logits in chunks too, and reads a copy of the first stage's embedding
    drafted = width * chunks if layout.mtp else 0
    copied = width * facts.hidden * batch.bytes if layout.mtp and stage > 0 and not facts.tied else 0
    if in_chunks(facts, layout, batch):
        return copied + width * ((facts.hidden * FLOAT if batch.adapter is None else 0) + chunks)
    return copied + max(drafted, logits(facts, layout, batch))


def split_tokens(layout: Layout, batch: Batch) -> int:
    """Tokens of a rank where the sequence is divided between tensor-parallel ranks."""
    return batch.tokens // layout.tensor if layout.sequence else batch.tokens


def _norm(facts: ModelFacts, size: int, batch: Batch, *, output: bool) -> int:
    """Bytes a token of a norm over `size` values; `output`: of what it gives as well."""
    kept = size * FLOAT + FLOAT
    if not batch.in_kernels and batch.adapter is None:
        # what is multiplied by the weight
        kept += size * (FLOAT if facts.zero_centered else batch.bytes)
    return kept + size * batch.bytes if output else kept


_CORE, _MLP, _EXPERTS = frozenset({"core_attn"}), frozenset({"mlp"}), frozenset({"moe"})


@dataclass(frozen=True, kw_only=True)
class _Module:
    """A part of a layer: `saved` bytes, or `inputs` where it is computed again.

    `names`: those of `Recompute.modules` that mean it. `again`: what it then saves; None: the same.
    """

    names: frozenset[str] = frozenset()
    saved: int
    inputs: int = 0
    again: int | None = None


def _layer(facts: ModelFacts, layout: Layout, batch: Batch, number: int) -> tuple[int, int]:
    """What waits of the layer, and by how much that grows at most as modules of it are computed again."""
    chosen = set(layout.recompute.modules) if layout.recompute else set()
    behind = redone = 0  # a backward pass has done with the modules behind
    for module in reversed(list(_modules(facts, layout, batch, number))):
        if module.names & chosen:
            redone = max(redone, (module.saved if module.again is None else module.again) - behind)
            behind += module.inputs
        else:
            behind += module.saved
    return behind, redone


def _modules(facts: ModelFacts, layout: Layout, batch: Batch, number: int) -> Iterator[_Module]:
    split = split_tokens(layout, batch)
    norm = split * _norm(facts, facts.hidden, batch, output=True)
    outer = split * _norm(facts, facts.hidden, batch, output=False) if facts.sandwich else 0
    yield _Module(saved=norm + outer)
    if facts.delta is not None and number in facts.delta.layers:
        yield from _delta_net(facts.delta, layout, batch)
    else:
        yield from (
            _latent(facts, facts.latent, layout, batch, number)
            if facts.latent
            else _attention(facts, layout, batch)
        )
    experts = facts.experts
    if experts is not None and number >= experts.first_dense:
        # a frozen router keeps nothing, and experts have their own copies of what they read
        is_read = batch.adapter is None or experts.shared
        yield _Module(saved=norm if is_read else norm - split * facts.hidden * batch.bytes)
        routed = _routed(facts, experts, layout, batch)
        shared = batch.tokens * GATED * experts.shared // layout.tensor * batch.bytes
        yield _Module(names=_EXPERTS, saved=routed, again=routed + shared)
        yield _Module(names=_EXPERTS | {"shared_experts"}, saved=shared)
    else:
        widths = GATED_ON_CPU if batch.in_kernels and not facts.gelu else GATED
        gated = batch.tokens * widths * facts.width // layout.tensor * batch.bytes
        total, residual = norm + gated + outer, split * facts.hidden * batch.bytes
        # in fp32 the norm keeps what the MLP reads, not a copy
        again = total - residual if batch.bytes == FLOAT else total
        yield _Module(names=_MLP, saved=total, inputs=residual, again=again)
    if batch.adapter is not None:
        is_sparse = experts is not None and number >= experts.first_dense
        rows = batch.tokens, split
        numbers = adapter_numbers(facts, layout, batch.adapter, rows, is_sparse=is_sparse)
        yield _Module(saved=batch.bytes * numbers)


def _attention(facts: ModelFacts, layout: Layout, batch: Batch) -> Iterator[_Module]:
    heads, groups = facts.heads // layout.tensor, facts.groups // layout.tensor
    queries, keys = heads * facts.head, groups * facts.head
    output, given = queries * batch.bytes, (queries + 2 * keys) * batch.bytes  # by the linear layer
    if facts.output_gate:
        given += queries * batch.bytes
    each, normed = output, False
    # queries of several groups are copies
    inputs = (queries if groups > 1 else 0) * batch.bytes
    if facts.qk_norm:
        if facts.joint_qk_norm:
            each += sum(_norm(facts, size, batch, output=False) for size in (queries, keys))
        else:
            each += (heads + groups) * _norm(facts, facts.head, batch, output=False)
        inputs = (queries + keys) * batch.bytes
        if batch.bytes == FLOAT:
            # Their input is a part of what the linear layer gave.
            each -= (keys if groups > 1 else keys + queries) * FLOAT
            normed = True
    turned = batch.tokens * (queries * batch.bytes + heads * FLOAT)  # and log-sums
    if layout.context == 1:
        each += given  # the values stay in it
        turned += batch.tokens * keys * batch.bytes
    else:
        # of all tokens that the rank's own see, as they were gathered
        turned += batch.read * 2 * keys * batch.bytes
        if normed:
            each += given
        else:
            inputs += given
    if facts.output_gate:
        each += output + queries * FLOAT  # what it multiplies, and its sigmoid
    yield _Module(saved=batch.tokens * each)
    again = turned + batch.tokens * output
    yield _Module(names=_CORE, saved=turned, inputs=batch.tokens * inputs, again=again)


def _delta_net(delta: DeltaFacts, layout: Layout, batch: Batch) -> Iterator[_Module]:
    kept = DeltaBytes.of(delta, layout.tensor, batch.bytes)
    core = int(batch.tokens * kept.core)
    yield _Module(saved=batch.tokens * kept.gates)
    again = int(batch.tokens * kept.again)
    yield _Module(names=_CORE, saved=core, inputs=batch.tokens * kept.inputs, again=again)
    yield _Module(saved=batch.tokens * kept.rest)


def _tables(facts: ModelFacts, layout: Layout, batch: Batch) -> int:
    """Token ids, and cosine and sine of their places; what the ranks of a pack see of it, and its order."""
    turned = facts.latent.rotated if facts.latent else facts.head
    return batch.tokens * (LONG + (turned + turned // 2) * batch.bytes) + shared_places(layout, batch)


def shared_places(layout: Layout, batch: Batch) -> int:
    """Bytes of the places of a pack that context-parallel ranks share: what each sees, and their order."""
    return (batch.read + layout.context * batch.tokens) * LONG if layout.context > 1 else 0


def _head(facts: ModelFacts, layout: Layout, batch: Batch) -> int:
    split = split_tokens(layout, batch)
    is_chunked = in_chunks(facts, layout, batch)
    total = split * _norm(facts, facts.hidden, batch, output=False)
    if not is_chunked:
        total += logits(facts, layout, batch)
    if layout.sequence:
        gathered = batch.rows if is_chunked else split
        return total + gathered * facts.hidden * batch.bytes + batch.rows * LONG
    return total + batch.rows * (facts.hidden * batch.bytes + LONG)


def _prediction(facts: ModelFacts, layout: Layout, batch: Batch) -> int:
    """A layer for multi-token prediction: its inputs, both joined, itself, its last norm and its rows."""
    split = split_tokens(layout, batch)
    inputs = split * 2 * facts.hidden * batch.bytes
    total = (
        inputs
        + _layer(facts, layout, batch, facts.layers)[0]
        + split * _norm(facts, facts.hidden, batch, output=False)
    )
    total += inputs  # joined
    return total + batch.rows * (facts.hidden * batch.bytes + 2 * LONG)


def _values(facts: ModelFacts, layout: Layout, batch: Batch) -> int:
    """The last norm, and the hidden states of all tokens, which the head of a critic reads."""
    hidden = batch.tokens * facts.hidden * batch.bytes
    return split_tokens(layout, batch) * _norm(facts, facts.hidden, batch, output=False) + hidden


def logits(facts: ModelFacts, layout: Layout, batch: Batch) -> int:
    return batch.rows * columns(facts, layout) * batch.bytes


def columns(facts: ModelFacts, layout: Layout) -> int:
    """Tokens of the vocabulary on a rank."""
    return -(-facts.vocabulary // layout.tensor)


def in_chunks(facts: ModelFacts, layout: Layout, batch: Batch) -> bool:
    """Whether the logits never exist as a whole."""
    rows = batch.tokens if layout.sequence else batch.rows
    return rows * columns(facts, layout) > MOST_LOGITS


def _latent(
    facts: ModelFacts, latent: LatentFacts, layout: Layout, batch: Batch, number: int
) -> Iterator[_Module]:
    heads, size = facts.heads // layout.tensor, batch.bytes
    inner, value = latent.unrotated + latent.rotated, latent.value
    compressed = _norm(facts, latent.key_value, batch, output=True)
    if size == FLOAT:
        compressed += latent.rotated * size  # the norm's input is a part of what the linear layer gave
    if latent.query:
        compressed += _norm(facts, latent.query, batch, output=True)
    yield _Module(saved=split_tokens(layout, batch) * compressed)
    # queries, keys, and the values, which stay in what the linear layer gave; the output
    inputs = heads * (2 * inner + latent.unrotated + value) * size
    output = heads * value * size
    # Values that are narrower than keys are padded for the kernel, and so is what it gives, of which the
    # output matrix reads a copy.
    padded = value < inner
    made = heads * ((inner if padded else value) * size + FLOAT)  # what the kernel gives, and log-sums
    if layout.context > 1:  # keys and values of all tokens that the rank's own see, as they were gathered
        gathered = batch.read * heads * (inner + (inner if padded else value)) * size
        saved = batch.tokens * heads * (inner * size + FLOAT + (inner * size if padded else 0)) + gathered
        again = batch.tokens * made + gathered
    else:
        values = 2 * inner * size if padded else (latent.unrotated + value) * size
        saved = batch.tokens * heads * (2 * inner * size + values + FLOAT)
        again = batch.tokens * (made + (heads * inner * size if padded else 0))
    if (index := latent.index) is not None:
        keys = seen_keys(batch.tokens, batch.longest, layout.context)
        saved, again = (kept + masks(index, batch.tokens, keys, size) for kept in (saved, again))
        if batch.teaches_indexers and number in index.layers:
            yield _Module(saved=split_tokens(layout, batch) * taught(facts, index, keys, size))
    yield _Module(saved=batch.tokens * output)
    yield _Module(names=_CORE, saved=saved, inputs=batch.tokens * inputs, again=again)


def _routed(facts: ModelFacts, experts: ExpertFacts, layout: Layout, batch: Batch) -> int:
    routed = split_tokens(layout, batch) * experts.active  # on average: tokens spread over the experts evenly
    # each rank of a cut expert gets the tokens of all of them, for its part of the width
    gated, inputs = (GATED_CLAMPED, 2) if experts.biased else (GATED, 1)  # with a bias, its rows as well
    total = routed * (layout.expert_tensor * inputs * facts.hidden + gated * experts.width) * batch.bytes
    total += routed * layout.expert_tensor * 2 * LONG if experts.biased else 0  # whose bias a row has
    # of the router: logits, scores and weights of all experts, and who was chosen; of the chosen ones the
    # numbers and the weights, as they were chosen and as they were sorted
    total += split_tokens(layout, batch) * (
        experts.count * (3 * FLOAT + 1) + experts.active * 2 * (LONG + FLOAT)
    )
    if experts.exact_router and batch.bytes != FLOAT and batch.adapter is None:
        total += split_tokens(layout, batch) * facts.hidden * FLOAT  # what the router reads
    return total
