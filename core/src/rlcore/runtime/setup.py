"""From a prepared run to what each train worker is given."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from rlcore.api.inputs import Input, TrainsOn
from rlcore.api.optimizer import OptimizerSettings
from rlcore.learning.settings import LearnerSettings
from rlcore.runtime.profiler import PROFILE, StepProfiler
from rlcore.runtime.worker import CRITIC, POLICY, REFERENCE, CriticSetup, WorkerSetup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlcore.api.run_config import OptimizerOptions, RunConfig
    from rlcore.compose.resolved import Resolved
    from rlcore.engines.publish import Publisher
    from rlcore.runtime.prepared import Prepared


def cpu_threads(run: RunConfig) -> int:
    """Threads of one train worker: the user's, or an equal share of the CPUs that this process may use."""
    if run.threads:
        return run.threads
    return max(1, len(os.sched_getaffinity(0)) // run.ranks)


def saved_roles(resolved: Resolved) -> tuple[str, ...]:
    """The roles whose weights a checkpoint must hold: a reference that never changes is none of them."""
    reference = (REFERENCE,) if resolved.run.kl.reference_refresh_every else ()
    return (POLICY, *reference, *((CRITIC,) if resolved.value_loss else ()))


def worker_setups(prepared: Prepared, publisher: Publisher, threads: int) -> list[WorkerSetup]:
    """One setup for each rank."""
    resolved, run = prepared.resolved, prepared.resolved.run
    needs = resolved.needs
    learner = LearnerSettings(
        minibatches=run.optimizer.minibatches,
        temperature=run.sampling.temperature,
        tokens_per_rank=run.optimizer.tokens_per_rank,
        entropy_coef=run.loss.entropy_coef,
        needs=needs,
        critic_needs=resolved.critic_needs,
        sampled=resolved.trains_on is TrainsOn.ROLLOUTS,
        top_tokens=resolved.loss.config.top_tokens,
        distill_coef=run.teacher.distill_coef,
        rollout_as_old=run.loss.old_log_probs == "rollout",
        whiten_advantages=run.loss.whiten_advantages,
        kl=run.kl,
        reference_is_initial=not run.kl.reference_model and prepared.resume_from is None,
        critic_warmup_steps=run.critic.critic_warmup_steps,
        normalizer=run.loss.normalizer,
        max_response_tokens=run.sampling.max_response_tokens,
        max_kl_engine=run.loss.max_kl_engine,
        dtype="bf16" if prepared.model.dtype == "bf16" else "fp32",
        whole=run.sampling.samples_whole,
        folder=str(prepared.run_dir),
        save_batches_every=run.debug.save_batches_every,
    )
    return [
        WorkerSetup(
            rank=rank,
            world_size=run.ranks,
            trainer=resolved.trainer,
            model=prepared.model,
            optimizer=_optimizer(run),
            learner=learner,
            loss=resolved.loss,
            advantage=resolved.advantage,
            corrections=resolved.corrections,
            reference=prepared.reference if Input.REFERENCE_LOG_PROBS in needs else None,
            teacher=prepared.teacher,
            is_swapped=run.kl.reference_placement == "swapped",
            replay_routing=run.loss.replay_routing,
            hooks=resolved.model_hooks,
            critic=_critic(prepared),
            publisher=publisher,
            seed=run.seed,
            threads=threads,
            step_timeout=run.limits.step_timeout,
            profiler=_profiler(prepared, rank),
        )
        for rank in range(run.ranks)
    ]


def _profiler(prepared: Prepared, rank: int) -> StepProfiler | None:
    steps = prepared.resolved.run.debug.profiled
    return None if steps is None else StepProfiler(prepared.run_dir / PROFILE, rank, *steps)


def _optimizer(run: RunConfig) -> OptimizerSettings:
    """Of the policy, whose first step comes after those of the critic alone."""
    steps = run.steps - run.critic.critic_warmup_steps
    return _scheduled(run.optimizer, steps, run.optimizer.warmup_of(steps))


def _scheduled(given: OptimizerOptions, steps: int, warmup: int) -> OptimizerSettings:
    """Over `steps` rollouts, of which the first `warmup` are those of the warm-up."""
    return OptimizerSettings(
        lr=given.lr,
        lr_schedule=given.lr_schedule,
        warmup_steps=warmup * given.minibatches,
        total_steps=steps * given.minibatches,
        min_lr=given.min_lr,
        weight_decay=given.weight_decay,
        clip_grad=given.clip_grad,
    )


def _critic(prepared: Prepared) -> CriticSetup | None:
    run, loss = prepared.resolved.run, prepared.resolved.value_loss
    if loss is None:
        return None
    given = run.critic.optimizer(run.optimizer)
    # what is the policy's own share of steps is as long for the critic
    counted = run.steps - (run.critic.critic_warmup_steps if run.critic.critic_lr_warmup_steps is None else 0)
    optimizer = _scheduled(given, run.steps, given.warmup_of(counted))
    return CriticSetup(model=prepared.critic, optimizer=optimizer, loss=loss)


def critic_setups(setups: Sequence[WorkerSetup], ranks: int) -> list[WorkerSetup]:
    """One for each of the `ranks` workers that have the critic alone; `setups`: of the train workers."""
    first = setups[0]
    if not ranks or first.critic is None:
        return []
    own = replace(first, world_size=ranks, model=first.critic.model)
    return [replace(own, rank=rank) for rank in range(ranks)]
