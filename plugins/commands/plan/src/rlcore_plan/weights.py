"""The parameters of one rank, in the order in which megatron-core registers them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from rlcore import LatentFacts, ModelFacts
from rlcore_plan.layout import Layout


@dataclass(frozen=True)
class Weight:
    """`numel` numbers on this rank. `is_shared`: the embedding that the output layer uses as well."""

    name: str
    numel: int
    is_expert: bool = False
    is_shared: bool = False

    @property
    def is_matrix(self) -> bool:
        """Whether Muon trains it."""
        return not self.name.endswith(("embedding", "output", "values", "norm", "bias"))


def whole(facts: ModelFacts) -> list[Weight]:
    """The whole model on one rank."""
    return stage(facts, Layout(world=1), 0)


def parameters(facts: ModelFacts) -> int:
    """All of them; tied embeddings count once, heads of multi-token prediction do not."""
    return sum(weight.numel for weight in whole(facts))


def active_parameters(facts: ModelFacts) -> int:
    """Those that one token meets."""
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
    dense = _layer(facts, tensor)
    mixture = _layer(facts, tensor, layout.expert, layout.expert_tensor) if facts.experts else dense
    first = facts.experts.first_dense if facts.experts else 0
    for layer in layout.layers(facts, number):
        yield from mixture if layer >= first else dense
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
    experts = (layout.expert, layout.expert_tensor) if facts.experts else ()
    yield from _layer(facts, layout.tensor, *experts)
    yield Weight("mtp_final_norm", facts.hidden)


@lru_cache(maxsize=1024)  # a search asks for the same ones for each of its layouts and stages
def _layer(facts: ModelFacts, tensor: int, *experts: int) -> tuple[Weight, ...]:
    """`experts`: in how many parts they and each of them are, of a layer that has some."""
    mlp = _mixture(facts, tensor, *experts) if experts else _mlp(facts, tensor)
    return (*_attention(facts, tensor), *mlp)


def _attention(facts: ModelFacts, tensor: int) -> Iterator[Weight]:
    hidden = facts.hidden
    if facts.latent is not None:
        yield from _latent(facts, facts.latent, tensor)
        return
    rows = (facts.heads + 2 * facts.groups) * facts.head // tensor
    yield Weight("proj", facts.heads * facts.head // tensor * hidden)
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
    yield Weight("experts_fc1", held * 2 * width * hidden, is_expert=True)
    yield Weight("experts_fc2", held * width * hidden, is_expert=True)
    if experts.shared:
        shared = experts.shared // tensor
        yield Weight("shared_fc1", 2 * shared * hidden)
        yield Weight("shared_fc2", shared * hidden)
