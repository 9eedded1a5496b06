"""What may change when a run goes on."""

import re
from typing import Any

from rlcore.api.config import flag_name
from rlcore.api.errors import ConfigError
from rlcore.api.marks import Mark
from rlcore.api.run_config import ROLES, RunConfig
from rlcore.compose.resolved import Resolved
from rlcore.config.fields import marked

FREE = {*marked(RunConfig, Mark.RESUMABLE), "cluster", "tracker", "callback"}
"""Settings that may change. Another layout of the ranks reads the same weights and optimizer states."""

_FREE_TABLES = ("eval.", "cluster.", "tracker.", "callback.")
_FREE_OF_ENGINE = re.compile(r"engine\.\w+_(s|timeout)")
"""Time limits of an engine."""


def check_same_past(old: Resolved, new: Resolved) -> None:
    """Raises `ConfigError` for the first flag under which the steps already taken would have differed."""
    before, after = old.flat(), new.flat()
    lengths = [(resolved.run.steps, resolved.run.epochs) for resolved in (old, new)]
    length = "--epochs" if new.run.epochs else "--steps"
    if lengths[0] != lengths[1] and old.run.optimizer.lr_schedule != "constant":
        raise ConfigError(
            f"{length}: with --lr-schedule {old.run.optimizer.lr_schedule} the learning rate of the steps "
            "already taken depends on it; leave the flag out."
        )
    # One without settings of its own has no line of them.
    for name in sorted({*old.run.policies} ^ {*new.run.policies}):
        raise ConfigError(
            f"--policy.{name}: the run was started with the further policies {[*old.run.policies]} and "
            f"cannot go on with {[*new.run.policies]}; leave it as it was."
        )
    trainer = new.trainer.config
    tables = [trainer.table, *(f"{role}.{trainer.table}" for role in ROLES)]
    free = FREE | {f"{table}.{name}" for table in tables for name in trainer.layout_fields}
    for name in {**before, **after}:
        is_free = name in free or name.startswith(_FREE_TABLES) or _FREE_OF_ENGINE.fullmatch(name)
        if is_free or before.get(name) == after.get(name):
            continue
        raise ConfigError(
            f"{flag_name(name)}: the run was started with {_value(before.get(name))} and cannot go on with "
            f"{_value(after.get(name))}; leave the flag out."
        )


def _value(value: Any) -> str:
    return repr(value) if value is not None else "none"
