"""The models beside the policy, and their own fields of the trainer: `--critic.TABLE.FIELD`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlcore.api.config import flag_name
from rlcore.api.errors import ConfigError

if TYPE_CHECKING:
    from rlcore.api.run_config import RunConfig
    from rlcore.compose.resolved import Resolved

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


def role_table_complaints(resolved: Resolved, roles: Collection[str]) -> Iterator[str]:
    """Fields of a role that the run does not have, or of a layout that the policy's workers cannot hold."""
    config = resolved.trainer.config
    for role, fields in resolved.role_fields.items():
        flag = flag_name(f"{role}.{config.table}.{next(iter(fields))}")
        if role not in roles:
            yield f"{flag}: the run has no {role}; leave it out."
        elif role == REFERENCE and resolved.run.kl.reference_placement == "swapped":
            yield f"{flag}: the reference borrows the policy's model by --reference-placement swapped."
        elif role not in own_ranks(resolved.run):
            yield from config.beside_complaints(role, resolved.trainer_fields, fields)


def role_rank_complaints(resolved: Resolved) -> Iterator[str]:
    """The ranks of roles with workers of their own.

    They must hold whole models. And each of the role's models must get the samples of a whole number of the
    policy's models, or the other way round, so that results find their samples.
    """
    config = resolved.trainer.config
    policies = resolved.run.ranks // config.model_ranks(resolved.trainer_fields)
    for role, ranks in own_ranks(resolved.run).items():
        found = f"--{role}-ranks: found {ranks}"
        model = config.model_ranks(resolved.fields_of(role))
        copies = ranks // model
        if ranks % model:
            yield (
                f"{found}, expected a multiple of {model}, the ranks that hold the {role} under the "
                "trainer's parallel sizes."
            )
        elif copies % policies and policies % copies:
            yield (
                f"{found}, which hold {copies} {role}s, expected a number that divides the {policies} "
                "policies of --ranks, or is divided by it."
            )
