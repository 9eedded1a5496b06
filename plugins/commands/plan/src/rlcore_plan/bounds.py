"""What bandwidth allows at best: seconds of a rollout and of a publication."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore import ModelFacts
from rlcore_plan.engines import Engines, sequence_cache, weights as engine_weights
from rlcore_plan.memory import BYTES
from rlcore_plan.phases import Needs, Run
from rlcore_plan.weights import parameters


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Bytes a second: `memory` of a GPU's own, `network` of a host; 0 where it is not given."""

    memory: int = 0
    network: int = 0


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Seconds at least; None where it is not known. `tokens`: most tokens a second of an engine."""

    rollout: float | None = None
    tokens: float | None = None
    publication: float | None = None


def bounds(facts: ModelFacts, run: Run, found: Needs, bandwidth: Bandwidth, per_node: int) -> Bounds:
    """Of a run with engines."""
    engines = run.engines
    if engines is None:
        return Bounds()
    tokens = rollout = publication = None
    if bandwidth.memory and not engines.is_drafting:  # a draft's tokens are checked several at a reading
        held = _held(found, facts, engines, run.work.dtype)
        experts = facts.experts
        share = min(1.0, held * engines.groups * experts.active / experts.count) if experts else 1.0
        read = engine_weights(facts, engines, run.work.dtype, share)
        # a cache is half full on average
        read += held * sequence_cache(facts, engines, run.work.dtype) // 2
        tokens = held * engines.groups * bandwidth.memory / read
        rollout = engines.total / (tokens * engines.count)
    if bandwidth.network:
        hosts = max(1, engines.gpus // per_node)
        # each host of an engine receives its part of the weights
        publication = parameters(facts) * BYTES[run.work.dtype] / hosts / bandwidth.network
    return Bounds(rollout=rollout, tokens=tokens, publication=publication)


def _held(found: Needs, facts: ModelFacts, engines: Engines, dtype: str) -> int:
    """Sequences that a GPU's cache holds at once."""
    cache = found.phases[-1].items["KV cache"]
    return max(1, cache // sequence_cache(facts, engines, dtype))
