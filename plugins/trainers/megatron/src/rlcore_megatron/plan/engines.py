"""What an engine needs on each of its GPUs, in bytes: weights, and the KV cache of what it is asked for."""

from dataclasses import dataclass
from functools import lru_cache

from rlcore import ModelFacts
from rlcore_megatron.plan.delta import channels_of
from rlcore_megatron.plan.layout import Layout
from rlcore_megatron.plan.memory import BYTES
from rlcore_megatron.plan.weights import Weight, stage

FULL = (
    *("embedding", "output", "values", "router", "shared_gate", "sinks", "rates", "convolution"),
    "index_weights",
)
"""Weights, beside the norms and biases, that no quantization touches."""
INDEX = ("index_query", "index_key", "index_bias", "index_weights")
WHOLE = ("router", "router_bias", "shared_gate", "proj_bias", "q_down", "kv_down", "gates_down", *INDEX)
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
        """The GPUs of one engine."""
        return self.tensor * self.pipeline

    @property
    def phase(self) -> str:
        """What they do, in the words of the table."""
        return f"generate ({self.group})" if self.group else "generate"


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
    are_whole = (weight for weight in every if weight.name in WHOLE or weight.name.endswith("norm"))
    whole = sum(_held(weight, engines, dtype) for weight in are_whole)
    rest = sum(_held(weight, engines, dtype) for weight in every) - experts - whole
    divided = rest // (engines.tensor // engines.parts) + int(experts * experts_read) // engines.tensor
    # each rank: whole + rest / (TP / parts) + experts · share / TP; then / PP, and a draft model's one layer
    held = whole + divided
    drafted = held // facts.layers if engines.is_drafting else 0
    return held // engines.pipeline + drafted


def _held(weight: Weight, engines: Engines, dtype: str) -> int:
    """Bytes of a weight; the scales of quantized ones are left out, 1 in 4000 or less."""
    if engines.weight_bits is None or not is_quantized(weight):
        return weight.numel * BYTES[engines.dtype or dtype]
    return weight.numel * engines.weight_bits // BITS


def is_quantized(weight: Weight) -> bool:
    """Whether quantized engines hold the weight in fewer bits."""
    return weight.name not in FULL and not weight.name.endswith(("norm", "bias"))


def cache_values(facts: ModelFacts) -> int:
    """Numbers that an engine keeps of one token: of each layer with attention, and of its indexers."""
    latent = facts.latent
    per_layer = latent.key_value + latent.rotated if latent else 2 * facts.groups * facts.head
    index = latent.index if latent else None
    keys = len(index.layers) * index.size if index else 0  # of indexers
    return per_layer * (facts.layers - (len(facts.delta.layers) if facts.delta else 0)) + keys


def sequence_cache(facts: ModelFacts, engines: Engines, dtype: str) -> int:
    """Bytes of the longest sequence's cache on each GPU that has a part of it.

    Latent attention keeps the whole of it on each; else it is divided by heads of keys and values.
    """
    ranks = engines.tensor // engines.parts
    heads = 1 if facts.latent else min(ranks, facts.groups)
    layers = facts.layers + int(engines.is_drafting)
    # numbers of a layer · layers · tokens · bytes of a number / (ranks that divide the heads · PP)
    numbers = cache_values(facts) * layers // facts.layers * engines.tokens
    grown = numbers * (engines.cache_bytes or BYTES[engines.dtype or dtype]) // (heads * engines.pipeline)
    return grown + _states(facts, engines, dtype)


def _states(facts: ModelFacts, engines: Engines, dtype: str) -> int:
    """Bytes of what delta nets keep of a sequence, however long it is: the state of each value head in fp32,
    and what the convolution saw last.
    """
    delta = facts.delta
    if delta is None:
        return 0
    state = delta.value_heads * delta.key * delta.value * BYTES["fp32"]
    seen = channels_of(delta) * (delta.taps - 1) * BYTES[engines.dtype or dtype]
    return len(delta.layers) * (state + seen) // (engines.tensor // engines.parts * engines.pipeline)
