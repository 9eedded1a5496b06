"""The sizes of a model that decide its memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LatentFacts:
    """Multi-head latent attention. `query`: rank of the queries, 0 where they are not compressed."""

    query: int
    key_value: int
    unrotated: int
    rotated: int
    value: int


@dataclass(frozen=True, kw_only=True)
class ExpertFacts:
    """A mixture: `count` experts of width `width` a layer, `active` of them for each token.

    `shared`: width of what every token takes beside them. `first_dense`: layers before the first mixture.
    `exact_router`: the router computes in fp32, whatever the model does.
    """

    count: int
    active: int
    width: int
    shared: int
    first_dense: int
    exact_router: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A decoder. `head`: dimensions of one head. `qkv_bias`, `qk_norm`: whether there are such.

    `joint_qk_norm`: whether one norm is over all heads of a token, not over each. `sandwich`: whether norms
    stand behind attention and MLP too.
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
    qk_norm: bool = False
    joint_qk_norm: bool = False
    sandwich: bool = False
    latent: LatentFacts | None = None
    experts: ExpertFacts | None = None

    @property
    def cache_values(self) -> int:
        """Numbers that an engine keeps of one token."""
        latent = self.latent
        per_layer = latent.key_value + latent.rotated if latent else 2 * self.groups * self.head
        return self.layers * per_layer
