"""What an engine needs on each of its GPUs, in bytes: weights, and the KV cache of what it is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore import ModelFacts
from rlcore_plan.memory import BYTES
from rlcore_plan.weights import whole


@dataclass(frozen=True, kw_only=True)
class Engines:
    """`count` engines of `tensor` × `pipeline` GPUs, each asked for `sequences` of up to `tokens` at once.

    `groups`: of an engine's GPUs that hold sequences of their own (attention in data parallel). `share`: of a
    GPU's memory that an engine takes for weights and cache; None: what is left. `cache_bytes`: of a number of
    the cache, None: as in the weights. `is_drafting`: a draft model of one layer guesses ahead. `total`:
    tokens of a rollout whose responses are as long as they may be, of all engines.
    """

    count: int
    sequences: int
    tokens: int
    tensor: int = 1
    pipeline: int = 1
    groups: int = 1
    share: float | None = None
    cache_bytes: int | None = None
    is_drafting: bool = False
    total: int = 0

    @property
    def gpus(self) -> int:
        """Of one engine."""
        return self.tensor * self.pipeline


def weights(facts: ModelFacts, engines: Engines, dtype: str, experts_read: float = 1.0) -> int:
    """Bytes of the weights on one GPU. What is no expert is whole in each group.

    `experts_read`: count this share of the experts alone.
    """
    found = whole(facts)
    experts = sum(weight.numel for weight in found if weight.is_expert)
    dense = sum(weight.numel for weight in found) - experts
    divided = dense // (engines.tensor // engines.groups) + int(experts * experts_read) // engines.tensor
    drafted = divided // facts.layers if engines.is_drafting else 0
    return (divided // engines.pipeline + drafted) * BYTES[dtype]


def sequence_cache(facts: ModelFacts, engines: Engines, dtype: str) -> int:
    """Bytes of the longest sequence's cache on each GPU that has a part of it.

    Latent attention keeps the whole of it on each; else it is divided by heads of keys and values.
    """
    ranks = engines.tensor // engines.groups
    parts = 1 if facts.latent else min(ranks, facts.groups)
    layers = facts.layers + int(engines.is_drafting)
    numbers = facts.cache_values // facts.layers * layers * engines.tokens
    return numbers * (engines.cache_bytes or BYTES[dtype]) // (parts * engines.pipeline)


def sequences_asked(engines: Engines) -> int:
    """Of a GPU."""
    return -(-engines.sequences // engines.groups)
