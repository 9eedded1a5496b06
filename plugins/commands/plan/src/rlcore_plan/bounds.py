"""What bandwidth allows at best: seconds of a rollout and of a publication."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore import ModelFacts
from rlcore_plan.engines import Engines, sequence_cache, weights as engine_weights
from rlcore_plan.phases import CACHE, Needs, Run


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Bytes a second: `memory` of a GPU's own, `network` of a host; 0 where it is not given."""

    memory: int = 0
    network: int = 0


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Seconds at least; None where it is not known. `tokens`: most tokens a second of the slowest engines."""

    rollout: float | None = None
    tokens: float | None = None
    publication: float | None = None


def bounds(facts: ModelFacts, run: Run, needs: Needs, bandwidth: Bandwidth, per_node: int) -> Bounds:
    """Of a run with engines. The group that is slowest binds; one that only prefills makes no tokens."""
    makers = [engines for engines in run.engines if engines.total]
    tokens = rollout = publication = None
    # a draft's tokens are checked several at a reading
    if bandwidth.memory and makers and not any(engines.is_drafting for engines in makers):
        speeds = [_tokens(facts, engines, run, needs, bandwidth.memory) for engines in makers]
        rollout, tokens = max(
            (engines.total / (speed * engines.count), speed)
            for engines, speed in zip(makers, speeds, strict=True)
        )
    if bandwidth.network and run.engines:
        hosts = max(1, min(engines.gpus for engines in run.engines) // per_node)
        # each host of an engine receives its part of the weights
        publication = run.published_bytes(facts) / hosts / bandwidth.network
    return Bounds(rollout=rollout, tokens=tokens, publication=publication)


def _tokens(facts: ModelFacts, engines: Engines, run: Run, needs: Needs, bandwidth: int) -> float:
    """A second, of one engine."""
    cache = next(phase.items[CACHE] for phase in needs.phases if phase.name == engines.phase)
    per_sequence = sequence_cache(facts, engines, run.work.dtype)
    held = max(1, cache // per_sequence)  # sequences of a GPU
    experts = facts.experts
    share = min(1.0, held * engines.parts * experts.active / experts.count) if experts else 1.0
    # a cache is half full on average
    read = engine_weights(facts, engines, run.work.dtype, share) + held * per_sequence // 2
    return held * engines.parts * bandwidth / read
