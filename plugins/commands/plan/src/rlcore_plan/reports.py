"""What `rlcore plan --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rlcore import ModelFacts
from rlcore_plan.bounds import Bounds
from rlcore_plan.memory import Workload
from rlcore_plan.phases import Machines, Run
from rlcore_plan.search import Candidate, apart, cache_bytes
from rlcore_plan.weights import active_parameters, parameters


def layouts(
    model: str,
    facts: ModelFacts,
    machines: Machines,
    work: Workload,
    candidates: Sequence[Candidate],
    more: Candidate | None,
) -> dict[str, Any]:
    """Of a search. `nearest`: where nothing fits, what does on more GPUs."""
    return {
        **_about(model, facts, machines, Run(work=work)),
        "layouts": [_candidate(candidate) for candidate in candidates],
        "nearest": _candidate(more) if more else None,
    }


def judged(
    model: str,
    facts: ModelFacts,
    machines: Machines,
    candidate: Candidate,
    near: Candidate | None,
    best: Bounds,
) -> dict[str, Any]:
    """Of a file. `nearest`: where it does not fit, what does. `apart`: what no layout of the policy mends.
    `bounds`: what bandwidth allows at best.
    """
    about = _about(model, facts, machines, candidate.run)
    return {
        **about,
        **_candidate(candidate),
        "nearest": _candidate(near) if near else None,
        "apart": apart(candidate),
        "bounds": asdict(best),
    }


def _about(model: str, facts: ModelFacts, machines: Machines, run: Run) -> dict[str, Any]:
    work = run.work
    return {
        "model": model,
        "parameters": parameters(facts),
        "active_parameters": active_parameters(facts),
        "publication_bytes": run.published_bytes(facts),
        "cache_bytes_per_token": cache_bytes(facts, run.published_dtype),
        "usable_bytes": machines.usable,
        "workload": asdict(work),
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    memory = {**asdict(candidate.memory), "total": candidate.memory.total} if candidate.memory else None
    phases = [
        {"name": phase.name, "items": dict(phase.items), "total": phase.total, "limit": phase.limit}
        | ({"note": phase.note} if phase.note else {})
        for phase in (candidate.needs.phases if candidate.needs else ())
    ]
    return {
        "layout": asdict(candidate.layout),
        "fits": candidate.fits,
        "reason": candidate.reason or None,
        "optimizer_on_host": candidate.run.optimizer.on_host,
        "engines": [
            {"group": engines.group, "count": engines.count, "gpus": engines.gpus}
            for engines in candidate.run.engines
        ],
        "memory": memory,
        "phases": phases,
        "host_bytes_per_node": candidate.needs.host if candidate.needs else None,
    }
