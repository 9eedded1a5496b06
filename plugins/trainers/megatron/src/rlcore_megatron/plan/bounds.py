"""What bandwidth allows at best: seconds of a rollout and of a publication."""

from rlcore import ModelFacts
from rlcore_megatron.plan.engines import Engines, sequence_cache, weights as engine_weights
from rlcore_megatron.plan.phases import Needs, Run
from rlcore_toolkit import CACHE, Bounds, Machines


def bounds(facts: ModelFacts, run: Run, needs: Needs, machines: Machines) -> Bounds:
    """What binds a run with engines: its slowest group; one that only prefills makes no tokens."""
    makers = [engines for engines in run.engines if engines.total]
    tokens = rollout = publication = None
    # a draft's tokens are checked several at a reading
    if machines.gpu_bandwidth and makers and not any(engines.is_drafting for engines in makers):
        speeds = [_tokens(facts, engines, run, needs, machines.gpu_bandwidth) for engines in makers]
        rollout, tokens = max(
            (engines.total / (speed * engines.count), speed)
            for engines, speed in zip(makers, speeds, strict=True)
        )
    if machines.network and run.engines:
        hosts = max(1, min(engines.gpus for engines in run.engines) // machines.per_node)
        # each host of an engine receives its part of the weights
        publication = run.published_bytes(facts) / hosts / machines.network
    return Bounds(rollout=rollout, tokens=tokens, publication=publication)


def _tokens(facts: ModelFacts, engines: Engines, run: Run, needs: Needs, bandwidth: int) -> float:
    """A second, of one engine."""
    cache = next(phase.items[CACHE] for phase in needs.phases if phase.name == engines.phase)
    per_sequence = sequence_cache(facts, engines, run.work.dtype)
    held = max(1, cache // per_sequence)  # sequences of a GPU
    experts = facts.experts
    share = min(1.0, held * engines.parts * experts.active / experts.count) if experts else 1.0
    # a step reads weights + sequences · cache / 2 (half full on average), and makes a token of each
    read = engine_weights(facts, engines, run.work.dtype, share) + held * per_sequence // 2
    return held * engines.parts * bandwidth / read
