"""The parameters of one rank, in the order in which megatron-core registers them."""

from collections.abc import Iterator
from dataclasses import dataclass

from rlcore import DeltaFacts, LatentFacts, ModelFacts
from rlcore_megatron.plan.delta import channels_of
from rlcore_megatron.plan.layout import Layout


@dataclass(frozen=True)
class Weight:
    """`numel` numbers on this rank. `is_shared`: the embedding that the output layer uses as well.

    `is_index`: of an indexer, which is frozen unless a setting trains it.
    """

    name: str
    numel: int
    is_expert: bool = False
    is_shared: bool = False
    is_index: bool = False

    @property
    def is_matrix(self) -> bool:
        """Whether Muon trains it."""
        return not self.name.endswith(("embedding", "output", "values", "norm", "bias", "sinks"))


def whole(facts: ModelFacts) -> list[Weight]:
    """The whole model on one rank."""
    return stage(facts, Layout(world=1), 0)


def parameters(facts: ModelFacts) -> int:
    """All of them; tied embeddings count once, heads of multi-token prediction do not."""
    return sum(weight.numel for weight in whole(facts))


def active_parameters(facts: ModelFacts) -> int:
    """Those that one token meets, the embedding and the output matrix as a whole."""
    idle = sum(weight.numel for weight in whole(facts) if weight.is_expert)
    experts = facts.experts
    return parameters(facts) - (idle - idle * experts.active // experts.count if experts else 0)


def stage(facts: ModelFacts, layout: Layout, number: int, *, values: bool = False) -> list[Weight]:
    """What each rank of pipeline stage `number` has. `values`: of a critic, with one value a token."""
    return list(_stage(facts, layout, number, values))


def _stage(facts: ModelFacts, layout: Layout, number: int, values: bool) -> Iterator[Weight]:
    tensor, last = layout.tensor, layout.pipeline - 1
    tied = facts.tied and not values
    vocabulary = -(-facts.vocabulary // tensor)  # padded to a multiple of the tensor-parallel size
    if number == 0:
        yield Weight("embedding", vocabulary * facts.hidden, is_shared=tied)
    parts = (layout.expert, layout.expert_tensor)
    first = facts.experts.first_dense if facts.experts else facts.layers
    for layer in layout.layers(facts, number):
        yield from _mixer(facts, tensor, layer)
        yield from _indexer(facts, layer)
        yield from _mixture(facts, tensor, *parts) if layer >= first else _mlp(facts, tensor)
    if number == last:
        yield Weight("final_norm", facts.hidden)
        if values:
            yield Weight("values", facts.hidden)
        elif not tied or last > 0:
            yield Weight("output", vocabulary * facts.hidden, is_shared=tied)
        if layout.mtp and not values:
            yield from _prediction(facts, layout)


def _prediction(facts: ModelFacts, layout: Layout) -> Iterator[Weight]:
    """A layer for multi-token prediction, which is one more of the model's last layers."""
    yield Weight("mtp_embedding_norm", facts.hidden)
    yield Weight("mtp_hidden_norm", facts.hidden)
    yield Weight("mtp_proj", 2 * facts.hidden * facts.hidden // layout.tensor)
    parts = (layout.expert, layout.expert_tensor)
    yield from _attention(facts, layout.tensor)
    yield from _indexer(facts, facts.layers)
    yield from _mixture(facts, layout.tensor, *parts) if facts.experts else _mlp(facts, layout.tensor)
    yield Weight("mtp_final_norm", facts.hidden)


def _mixer(facts: ModelFacts, tensor: int, layer: int) -> Iterator[Weight]:
    if facts.delta is not None and layer in facts.delta.layers:
        return _delta_net(facts.hidden, facts.delta, tensor)
    return _attention(facts, tensor)


def _delta_net(hidden: int, delta: DeltaFacts, tensor: int) -> Iterator[Weight]:
    heads = delta.value_heads // tensor
    values, channels = heads * delta.value, channels_of(delta) // tensor
    yield Weight("attention_norm", hidden)
    rates = delta.key_heads // tensor * delta.key if delta.rank else heads
    yield Weight("qkvz", (channels if delta.rank else channels + values) * hidden)
    yield Weight("rates", (heads if delta.rank else 2 * heads) * hidden)
    if delta.rank:
        yield Weight("gates_down", 2 * delta.rank * hidden)
        yield Weight("rates_up", rates * delta.rank)
        yield Weight("gates_up", values * delta.rank)
    yield Weight("convolution", channels * delta.taps)
    yield Weight("decay_bias", heads)
    yield Weight("rates_bias", rates)
    yield Weight("values_norm", delta.value)
    yield Weight("delta_proj", values * hidden)


def _attention(facts: ModelFacts, tensor: int) -> Iterator[Weight]:
    hidden = facts.hidden
    if facts.latent is not None:
        yield from _latent(facts, facts.latent, tensor)
        return
    queries = (2 if facts.output_gate else 1) * facts.heads
    rows = (queries + 2 * facts.groups) * facts.head // tensor
    if facts.sinks:
        yield Weight("sinks", facts.heads // tensor)
    yield Weight("proj", facts.heads * facts.head // tensor * hidden)
    if facts.output_bias:
        yield Weight("proj_bias", hidden)
    if facts.sandwich:
        yield Weight("post_attention_norm", hidden)
    yield Weight("qkv", rows * hidden)
    if facts.qkv_bias:
        yield Weight("qkv_bias", rows)
    yield Weight("attention_norm", hidden)
    if facts.qk_norm:
        query, key = (facts.heads // tensor, facts.groups // tensor) if facts.joint_qk_norm else (1, 1)
        yield Weight("q_norm", query * facts.head)
        yield Weight("k_norm", key * facts.head)


def _latent(facts: ModelFacts, latent: LatentFacts, tensor: int) -> Iterator[Weight]:
    hidden, heads = facts.hidden, facts.heads // tensor
    query = heads * (latent.unrotated + latent.rotated)
    yield Weight("attention_norm", hidden)
    yield Weight("proj", heads * latent.value * hidden)
    if latent.query:
        yield Weight("q_down", latent.query * hidden)
        yield Weight("q_up", query * latent.query)
        yield Weight("q_up_norm", latent.query)
    else:
        yield Weight("q", query * hidden)
    yield Weight("kv_down", (latent.key_value + latent.rotated) * hidden)
    yield Weight("kv_up", heads * (latent.unrotated + latent.value) * latent.key_value)
    yield Weight("kv_up_norm", latent.key_value)


def _indexer(facts: ModelFacts, layer: int) -> Iterator[Weight]:
    """Each rank has all of it; a layer for multi-token prediction, which stands behind all, has one."""
    index = facts.latent.index if facts.latent else None
    if facts.latent is None or index is None or layer not in index.layers | {facts.layers}:
        return
    yield Weight("index_query", index.heads * index.size * facts.latent.query, is_index=True)
    yield Weight("index_key", index.size * facts.hidden, is_index=True)
    yield Weight("index_norm", index.size, is_index=True)
    yield Weight("index_bias", index.size, is_index=True)
    yield Weight("index_weights", index.heads * facts.hidden, is_index=True)


def _mlp(facts: ModelFacts, tensor: int) -> Iterator[Weight]:
    width = facts.width // tensor
    yield Weight("fc1", 2 * width * facts.hidden)
    yield Weight("mlp_norm", facts.hidden)
    yield Weight("fc2", facts.hidden * width)
    if facts.sandwich:
        yield Weight("post_mlp_norm", facts.hidden)


def _mixture(facts: ModelFacts, tensor: int, expert: int, expert_tensor: int) -> Iterator[Weight]:
    experts = facts.experts
    assert experts is not None, "asked of a model with experts"
    hidden, held = facts.hidden, experts.count // expert
    width = experts.width // expert_tensor
    yield Weight("mlp_norm", hidden)
    yield Weight("router", experts.count * hidden)
    if experts.biased:
        yield Weight("router_bias", experts.count)
    yield Weight("experts_fc1", held * 2 * width * hidden, is_expert=True)
    if experts.biased:
        yield Weight("experts_fc1_bias", held * 2 * width, is_expert=True)
    yield Weight("experts_fc2", held * width * hidden, is_expert=True)
    if experts.biased:
        yield Weight("experts_fc2_bias", held * hidden // expert_tensor, is_expert=True)
    if experts.shared:
        shared = experts.shared // tensor
        yield Weight("shared_fc1", 2 * shared * hidden)
        yield Weight("shared_fc2", shared * hidden)
    if experts.shared_gate:
        yield Weight("shared_gate", hidden)
