"""From a prepared run to what each train worker is given."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from rlcore.api.inputs import Input, TrainsOn
from rlcore.api.run_config import RunConfig
from rlcore.compose.resolved import Resolved
from rlcore.compose.roles import CRITIC, POLICY, REFERENCE, own_ranks
from rlcore.config_fp8 import fp8_block
from rlcore.engines.publish import Publisher
from rlcore.learning.settings import LearnerSettings
from rlcore.runtime.prepared import Prepared
from rlcore.runtime.profiler import PROFILE, StepProfiler
from rlcore.runtime.worker import WorkerSetup


def cpu_threads(run: RunConfig) -> int:
    """Threads of one train worker: the user's, or an equal share of the CPUs that this process may use."""
    # `os.cpu_count` would count the host's CPUs in a container that may use only some of them.
    return run.threads or max(1, len(os.sched_getaffinity(0)) // run.ranks)


def saved_roles(resolved: Resolved) -> tuple[str, ...]:
    """The roles whose weights a checkpoint must hold: a reference that never changes is none of them."""
    reference = (REFERENCE,) if resolved.run.kl.reference_refresh_every else ()
    return (POLICY, *reference, *((CRITIC,) if resolved.value_loss else ()))


def worker_setups(
    prepared: Prepared,
    publisher: Publisher,
    threads: int,
    senders: Collection[int] = (0,),
    sources: Sequence[Sequence[int]] = (),
) -> list[WorkerSetup]:
    """One setup for each rank. `senders`: ranks from which engines take new weights. `sources`: for each
    engine, the train ranks on the devices of its ranks, if it takes weights from these.
    """
    readers = Counter(rank for ranks in sources for rank in ranks)
    resolved, run = prepared.resolved, prepared.resolved.run
    needs, steps = resolved.needs, run.debug.profiled
    learner = LearnerSettings(
        run=run,
        dtype="bf16" if prepared.model.dtype == "bf16" else "fp32",
        folder=str(prepared.run_dir),
        sampled=resolved.trains_on is TrainsOn.ROLLOUTS,
        needs=needs,
        critic_needs=resolved.critic_needs,
        top_tokens=resolved.loss.config.top_tokens,
        # A resumed policy has moved away from its reference, so nothing can be compared.
        reference_is_initial=not run.kl.reference_model and prepared.resume_from is None,
        serves_fp8=fp8_block(prepared.hf_config.get("quantization_config")) is not None,
    )
    return [
        WorkerSetup(
            rank=rank,
            world_size=run.ranks,
            threads=threads,
            learner=learner,
            trainer=resolved.trainer,
            model=prepared.model,
            loss=resolved.loss,
            advantage=resolved.advantage,
            corrections=resolved.corrections,
            hooks=resolved.model_hooks,
            reference=prepared.reference if Input.REFERENCE_LOG_PROBS in needs else None,
            teacher=prepared.teacher,
            critic=prepared.critic if resolved.value_loss else None,
            value_loss=resolved.value_loss,
            publisher=publisher.feeding(readers[rank]),
            sends=rank in senders,
            tells=rank == min(senders),
            profiler=None if steps is None else StepProfiler(prepared.run_dir / PROFILE, rank, *steps),
        )
        for rank in range(run.ranks)
    ]


def role_setups(setups: Sequence[WorkerSetup]) -> dict[str, list[WorkerSetup]]:
    """Those of the workers of each role that has some of its own; `setups`: of the train workers."""
    return {
        role: [replace(setups[0], rank=rank, world_size=ranks) for rank in range(ranks)]
        for role, ranks in own_ranks(setups[0].run).items()
    }
