"""What an engine needs on each of its GPUs, in bytes: weights, and the KV cache of what it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from rlcore import ModelFacts
from rlcore_plan.layout import Layout
from rlcore_plan.memory import BYTES
from rlcore_plan.weights import Weight, stage

FULL = ("embedding", "output", "values", "router", "qkv_bias")
"""Weights, beside the norms, that no quantization touches."""
WHOLE = ("router", "q_down", "kv_down")
"""Weights, beside the norms, that each rank has whole."""
BITS = 8


@dataclass(frozen=True, kw_only=True)
class Engines:
    """`count` engines of `tensor` × `pipeline` GPUs, each asked for `sequences` of up to `tokens` at once.

    `group`: the name of their group; empty: all are alike. `dtype`: "fp32" or "bf16"; None: the trainer's.
    `most`: sequences that one works on at once whatever it is asked. `parts`: of an engine's GPUs that hold
    sequences of their own (attention in data parallel). `share`: of a GPU's memory that an engine takes for
    weights and cache; None: what is left. `cache_bytes`: of a number of the cache, `weight_bits`: of a number
    of the linear layers; None: as `dtype` says. `is_drafting`: a draft model of one layer guesses ahead.
    `is_classifier`: it gives scores. `total`: tokens of a rollout whose responses are as long as they may be,
    of all these engines.
    """

    count: int
    sequences: int
    tokens: int
    group: str = ""
    dtype: str | None = None
    most: int | None = None
    tensor: int = 1
    pipeline: int = 1
    parts: int = 1
    share: float | None = None
    cache_bytes: int | None = None
    weight_bits: int | None = None
    is_drafting: bool = False
    is_classifier: bool = False
    total: int = 0

    @property
    def gpus(self) -> int:
        """Of one engine."""
        return self.tensor * self.pipeline

    @property
    def phase(self) -> str:
        """What they do, in the words of the table."""
        return f"generate ({self.group})" if self.group else "generate"

    def joined(self, factor: int) -> Engines:
        """As many fewer engines, each of `factor` times the GPUs."""
        asked = self.sequences * factor
        return replace(
            self,
            count=self.count // factor,
            tensor=self.tensor * factor,
            sequences=asked if self.most is None else min(asked, self.most),
        )


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A model that the run serves on GPUs of its own and never trains. `facts` None: they are not known."""

    name: str
    facts: ModelFacts | None
    engines: Engines


@lru_cache(maxsize=256)
def weights(facts: ModelFacts, engines: Engines, dtype: str, experts_read: float = 1.0) -> int:
    """Bytes of the weights on one GPU. What is no expert is whole in each part. `dtype`: the trainer's.

    `experts_read`: count this share of the experts alone.
    """
    every = stage(facts, Layout(world=1), 0, values=engines.is_classifier)
    experts = sum(_held(weight, engines, dtype) for weight in every if weight.is_expert)
    whole = sum(_held(weight, engines, dtype) for weight in every if _is_whole(weight))
    rest = sum(_held(weight, engines, dtype) for weight in every) - experts - whole
    divided = rest // (engines.tensor // engines.parts) + int(experts * experts_read) // engines.tensor
    held = whole + divided
    drafted = held // facts.layers if engines.is_drafting else 0
    return held // engines.pipeline + drafted


def _held(weight: Weight, engines: Engines, dtype: str) -> int:
    """Bytes of a weight; the scales of quantized ones are left out, 1 in 4000 or less."""
    if engines.weight_bits is None or not is_quantized(weight):
        return weight.numel * BYTES[engines.dtype or dtype]
    return weight.numel * engines.weight_bits // BITS


def _is_whole(weight: Weight) -> bool:
    return weight.name in WHOLE or weight.name.endswith("norm")


def is_quantized(weight: Weight) -> bool:
    """Whether quantized engines hold the weight in fewer bits."""
    return weight.name not in FULL and not weight.name.endswith("norm")


def sequence_cache(facts: ModelFacts, engines: Engines, dtype: str) -> int:
    """Bytes of the longest sequence's cache on each GPU that has a part of it.

    Latent attention keeps the whole of it on each; else it is divided by heads of keys and values.
    """
    ranks = engines.tensor // engines.parts
    heads = 1 if facts.latent else min(ranks, facts.groups)
    layers = facts.layers + int(engines.is_drafting)
    numbers = facts.cache_values // facts.layers * layers * engines.tokens
    return numbers * (engines.cache_bytes or BYTES[engines.dtype or dtype]) // (heads * engines.pipeline)


def sequences_asked(engines: Engines) -> int:
    """Of a GPU."""
    return -(-engines.sequences // engines.parts)
