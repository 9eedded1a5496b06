"""What `rlcore plan --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rlcore import ModelFacts
from rlcore_plan.bounds import Bounds
from rlcore_plan.memory import Workload
from rlcore_plan.phases import Machines
from rlcore_plan.search import Candidate, cache_bytes, publication_bytes
from rlcore_plan.weights import active_parameters, parameters


def layouts(
    model: str, facts: ModelFacts, machines: Machines, work: Workload, found: Sequence[Candidate]
) -> dict[str, Any]:
    """Of a search."""
    return {**_about(model, facts, machines, work), "layouts": [_candidate(one) for one in found]}


def judged(
    model: str,
    facts: ModelFacts,
    machines: Machines,
    found: Candidate,
    near: Candidate | None,
    best: Bounds,
) -> dict[str, Any]:
    """Of a file. `nearest`: where it does not fit, what does. `bounds`: what bandwidth allows at best."""
    about = _about(model, facts, machines, found.run.work)
    return {
        **about,
        **_candidate(found),
        "nearest": _candidate(near) if near else None,
        "bounds": asdict(best),
    }


def _about(model: str, facts: ModelFacts, machines: Machines, work: Workload) -> dict[str, Any]:
    return {
        "model": model,
        "parameters": parameters(facts),
        "active_parameters": active_parameters(facts),
        "publication_bytes": publication_bytes(facts, work),
        "cache_bytes_per_token": cache_bytes(facts, work.dtype),
        "usable_bytes": machines.usable,
        "workload": asdict(work),
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    memory = {**asdict(one.memory), "total": one.memory.total} if one.memory else None
    phases = [
        {"name": phase.name, "items": dict(phase.items), "total": phase.total, "limit": phase.limit}
        | ({"note": phase.note} if phase.note else {})
        for phase in (one.needs.phases if one.needs else ())
    ]
    return {
        "layout": asdict(one.layout),
        "fits": one.fits,
        "reason": one.reason or None,
        "optimizer_on_host": one.run.optimizer.on_host,
        "engines": [
            {"group": engines.group, "count": engines.count, "gpus": engines.gpus}
            for engines in one.run.engines
        ],
        "memory": memory,
        "phases": phases,
        "host_bytes_per_node": one.needs.host if one.needs else None,
    }
