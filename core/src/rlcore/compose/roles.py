"""The models beside the policy, and their own fields of the trainer: `--critic.TABLE.FIELD`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rlcore.api.errors import ConfigError
from rlcore.api.run_config import RunConfig

POLICY, CRITIC, REFERENCE, TEACHER = "policy", "critic", "reference", "teacher"
"""The roles, and their folders in a checkpoint."""
ROLES = (CRITIC, REFERENCE, TEACHER)
"""Those beside the policy."""


def own_ranks(run: RunConfig) -> dict[str, int]:
    """Of each role that has workers of its own, how many."""
    values = run.values()
    return {role: ranks for role in ROLES if (ranks := values[f"{role}_ranks"])}


def role_of(name: str) -> tuple[str, str]:
    """`critic.table.x` → (`critic`, `table.x`); a name without a role → (``, the name)."""
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
    """A `ConfigError` raised inside begins with `Of the critic:`."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"Of the {role}: {error}") from error
