"""The models beside the policy, and their own fields of the trainer: `--critic.TABLE.FIELD`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlcore.api.config import flag_name
from rlcore.api.errors import ConfigError

if TYPE_CHECKING:
    from rlcore.compose.resolved import Resolved

CRITIC, REFERENCE, TEACHER = "critic", "reference", "teacher"
ROLES = (CRITIC, REFERENCE, TEACHER)


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
        elif not (role == CRITIC and resolved.run.critic.critic_ranks):
            yield from config.beside_complaints(role, resolved.trainer_fields, fields)


def critic_rank_complaints(resolved: Resolved) -> Iterator[str]:
    """The ranks of a critic with workers of its own.

    They must hold whole models. And each of its models must get the samples of a whole number of the policy's
    models, or the other way round, so that values find their samples.
    """
    critic, config = resolved.run.critic, resolved.trainer.config
    if not critic.critic_ranks:
        return
    model = config.model_ranks(resolved.fields_of(CRITIC))
    if critic.critic_ranks % model:
        yield (
            f"--critic-ranks: found {critic.critic_ranks}, expected a multiple of {model}, the ranks that "
            "hold the critic under the trainer's parallel sizes."
        )
        return
    critics = critic.critic_ranks // model
    policies = resolved.run.ranks // config.model_ranks(resolved.trainer_fields)
    if critics % policies and policies % critics:
        yield (
            f"--critic-ranks: found {critic.critic_ranks}, which hold {critics} critics, expected a number "
            f"that divides the {policies} policies of --ranks, or is divided by it."
        )
