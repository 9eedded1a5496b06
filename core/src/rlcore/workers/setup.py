"""From a prepared run to what each train worker is given."""

import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from rlcore.api.columns import TrainsOn
from rlcore.api.roles import START, ModelKind
from rlcore.api.run_config import RunConfig
from rlcore.engines.publish import Publisher
from rlcore.learning.settings import LearnerSettings
from rlcore.preparation.prepared import Prepared
from rlcore.weights.fp8_config import fp8_block
from rlcore.workers.train_worker import WorkerSetup
from rlcore_machine.profiler import PROFILE, StepProfiler


def cpu_threads(run: RunConfig) -> int:
    """Threads of one train worker: the user's, or an equal share of the CPUs that this process may use."""
    # `os.cpu_count` would count the host's CPUs in a container that may use only some of them.
    return run.threads or max(1, len(os.sched_getaffinity(0)) // run.ranks)


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
    copies = [
        name for name, role in prepared.roles.items() if (role.kind, role.source) == (ModelKind.SCORER, START)
    ]
    learner = LearnerSettings(
        run=run,
        dtype="bf16" if prepared.model.dtype == "bf16" else "fp32",
        folder=str(prepared.run_dir),
        sampled=resolved.trains_on is TrainsOn.ROLLOUTS,
        needs=needs,
        return_needs=resolved.return_needs,
        top_tokens=resolved.loss.config.top_tokens,
        # A resumed policy has moved away from its copies, so nothing can be compared.
        copies=frozenset() if prepared.resume_from else frozenset(copies),
        serves_fp8=fp8_block(prepared.hf_config.get("quantization_config")) is not None,
    )
    return [
        WorkerSetup(
            rank=rank,
            world_size=run.ranks,
            threads=threads,
            learner=learner,
            trainer=resolved.trainer,
            roles=prepared.roles,
            loss=resolved.loss,
            advantage=resolved.advantage,
            corrections=resolved.corrections,
            hooks=resolved.model_hooks,
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
        role: [replace(setups[0], rank=rank, world_size=spec.ranks) for rank in range(spec.ranks)]
        for role, spec in setups[0].roles.items()
        if spec.ranks
    }
