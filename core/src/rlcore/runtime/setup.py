"""From a prepared run to what each train worker is given."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rlcore.runtime.worker import WorkerSetup
from rlcore.settings import LearnerSettings, OptimizerSettings

if TYPE_CHECKING:
    from rlcore.config.run import RunConfig
    from rlcore.engines.publish import Publisher
    from rlcore.runtime.prepare import Prepared


def cpu_threads(run: RunConfig) -> int:
    """Threads of one train worker: the user's, or an equal share of the CPUs that this process may use."""
    if run.threads:
        return run.threads
    return max(1, len(os.sched_getaffinity(0)) // run.ranks)


def worker_setups(prepared: Prepared, publisher: Publisher, threads: int) -> list[WorkerSetup]:
    """One setup for each rank."""
    resolved, run = prepared.resolved, prepared.resolved.run
    optimizer = OptimizerSettings(
        lr=run.lr,
        lr_schedule=run.lr_schedule,
        warmup_steps=run.warmup_steps * run.minibatches,
        total_steps=run.steps * run.minibatches,
        min_lr=run.min_lr,
        weight_decay=run.weight_decay,
        clip_grad=run.clip_grad,
    )
    learner = LearnerSettings(
        minibatches=run.minibatches,
        temperature=run.temperature,
        tokens_per_rank=run.tokens_per_rank,
        entropy_coef=run.entropy_coef,
        normalizer=run.normalizer,
        max_response_tokens=run.max_response_tokens,
        max_kl_engine=run.max_kl_engine,
        dtype="bf16" if prepared.model.dtype == "bf16" else "fp32",
        whole=run.top_p >= 1 and run.top_k <= 0 and run.min_p <= 0,
        folder=str(prepared.run_dir),
    )
    return [
        WorkerSetup(
            rank=rank,
            world_size=run.ranks,
            model=prepared.model,
            optimizer=optimizer,
            learner=learner,
            loss=resolved.loss,
            advantage=resolved.advantage,
            publisher=publisher,
            seed=run.seed,
            threads=threads,
        )
        for rank in range(run.ranks)
    ]
