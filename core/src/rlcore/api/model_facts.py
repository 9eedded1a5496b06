"""The sizes of a model that decide its memory."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class IndexFacts:
    """Indexers of sparse attention: heads of one and their size, keys of a query, layers that have one."""

    heads: int
    size: int
    top: int
    layers: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class LatentFacts:
    """Multi-head latent attention. `query`: rank of the queries, 0 where they are not compressed.

    `index`: of sparse attention.
    """

    query: int
    key_value: int
    unrotated: int
    rotated: int
    value: int
    index: IndexFacts | None = None


@dataclass(frozen=True, kw_only=True)
class DeltaFacts:
    """Gated delta nets in the place of attention, in the layers of these numbers.

    `key`, `value`: dimensions of a head. `taps`: tokens that the convolution sees. `rank`: each channel of
    a key has a rate; products of two matrices of this rank make the rates, and the gates of the values. 0: a
    head has one rate, and one matrix makes the gates.
    """

    layers: frozenset[int]
    key_heads: int
    value_heads: int
    key: int
    value: int
    taps: int
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class ExpertFacts:
    """A mixture: `count` experts of width `width` a layer, `active` of them for each token.

    `shared`: width of what every token takes beside them; `shared_gate`: whether that has a gate.
    `first_dense`: layers before the first mixture. `exact_router`: the router computes in fp32, whatever the
    model does. `biased`: it and the experts have biases. `joint`: files have the experts of a layer as one
    tensor.
    """

    count: int
    active: int
    width: int
    shared: int
    first_dense: int
    exact_router: bool = False
    shared_gate: bool = False
    biased: bool = False
    joint: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A decoder. `head`: dimensions of one head. `qkv_bias`, `output_bias` (of the attention), `qk_norm`,
    `sinks` (one a head): whether there are such.

    `joint_qk_norm`: whether one norm is over all heads of a token, not over each. `sandwich`: whether norms
    stand behind attention and MLP too. `output_gate`: whether attention's output has one, as wide as queries.
    `zero_centered`: whether norms scale by 1 + weight. `gelu`: the MLP's activation is that, not SiLU.
    """

    layers: int
    hidden: int
    width: int
    heads: int
    groups: int
    head: int
    vocabulary: int
    tied: bool
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False
    qk_norm: bool = False
    joint_qk_norm: bool = False
    sandwich: bool = False
    latent: LatentFacts | None = None
    experts: ExpertFacts | None = None
    delta: DeltaFacts | None = None
    output_gate: bool = False
    zero_centered: bool = False
    gelu: bool = False
