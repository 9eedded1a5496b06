"""The models beside the policy, and their own fields of the trainer: `--ROLE.TABLE.FIELD`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rlcore.api.errors import ConfigError
from rlcore.api.overlay import Overlay
from rlcore.api.part import ModelSpec
from rlcore.api.roles import POLICY, ModelKind, RoleSpec
from rlcore.api.run_config import ROLES, RunConfig


def role_of(name: str) -> tuple[str, str]:
    """`ROLE.table.x` → (`ROLE`, `table.x`); a name without a role → (``, the name)."""
    role, dot, rest = name.partition(".")
    return (role, rest) if dot and role in ROLES else ("", name)


def role_fields(table: str, passed: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Role → its own fields of `table`. `passed`: settings by their dotted names."""
    fields: dict[str, dict[str, Any]] = {}
    for name, value in passed.items():
        role, rest = role_of(name)
        if role and rest.startswith(f"{table}."):
            fields.setdefault(role, {})[rest.removeprefix(f"{table}.")] = value
    return fields


@contextmanager
def of_role(role: str) -> Iterator[None]:
    """A `ConfigError` raised inside begins with `Of the ROLE:`, and names the flags of a further policy."""
    try:
        yield
    except ConfigError as error:
        table = RunConfig.policy_table
        own = role if role.startswith(f"{POLICY}.") else table
        raise ConfigError(f"Of the {role}: {error}".replace(f"--{table}.", f"--{own}.")) from error


def policy_spec(model: ModelSpec, run: RunConfig, overlay: Overlay | None = None) -> RoleSpec:
    """The policy in `run`. It takes its first step after those that train another model alone."""
    return RoleSpec(
        kind=ModelKind.POLICY,
        model=model,
        optimizer=run.optimizer.scheduled(run.policy_steps, run.optimizer.warmup_of(run.policy_steps)),
        replayed=run.loss.replayed,
        overlay=overlay,
    )
