"""How many steps `--epochs` makes, and whether the warm-ups fit into the run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from rlcore.api.errors import ConfigError
from rlcore.api.run_config import RunConfig
from rlcore.compose.resolved import Resolved


def with_steps_of(resolved: Resolved, prompts: int) -> Resolved:
    """The run with `--epochs` as steps: the fewest that draw each of its `prompts` prompts that often.

    Raises `ConfigError` where it is too short for its warm-ups.
    """
    run = resolved.run
    if not run.epochs:
        return resolved
    counted = run.but(steps=math.ceil(run.epochs * prompts / run.data.prompts_per_step))
    for sentence in schedule_complaints(counted):
        raise ConfigError(sentence)
    return replace(resolved, run=counted)


def schedule_complaints(run: RunConfig) -> Iterator[str]:
    """Warm-ups that are longer than the run. Call it once the number of steps is known."""
    critic, total = run.critic.critic_warmup_steps, run.steps
    if critic >= total:
        yield f"--critic-warmup-steps: found {critic}, expected less than --steps ({total})."
    own = run.critic.critic_lr_warmup_steps
    if own is not None and own >= total:
        yield f"--critic-lr-warmup-steps: found {own}, expected less than --steps ({total})."
    left = total - critic
    # The policy's warm-up begins only after that of the critic.
    if 0 < left <= run.optimizer.warmup_steps:
        most = (
            f"{left}, the --steps that are left after --critic-warmup-steps"
            if critic
            else f"--steps ({total})"
        )
        yield f"--warmup-steps: found {run.optimizer.warmup_steps}, expected less than {most}."
