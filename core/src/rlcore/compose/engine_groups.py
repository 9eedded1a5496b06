"""Engines with settings of their own: `--engine-group NAME=N`, and the fields of each group."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from rlcore.api.config import flag_name
from rlcore.api.errors import ConfigError, did_you_mean
from rlcore.api.part import Part
from rlcore.api.records import NAME
from rlcore.api.run_config import RunConfig
from rlcore.compose.resolved import Inference, Resolved
from rlcore.config import layers

ENGINE_GROUP = "engine_group"
FLAG = flag_name(ENGINE_GROUP)


def engine_groups(run: RunConfig) -> dict[str, int]:
    """Name → engines of each group, in the order of the engines. Raises `ConfigError`."""
    expected = "NAME=N, with a name of lower-case letters, digits and underscores, and at least one engine"
    sizes = assigned(
        FLAG, run.serving.engine_group, expected, lambda count: count.isdecimal() and int(count) > 0
    )
    return {name: int(count) for name, count in sizes.items()}


def assigned(
    flag: str, assignments: Iterable[str], expected: str, fits: Callable[[str], bool]
) -> dict[str, str]:
    """Name → value of each NAME=VALUE. Raises `ConfigError` for a value that does not fit, or a name given
    twice.
    """
    values: dict[str, str] = {}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        if not (NAME.fullmatch(name) and fits(value)):
            raise ConfigError(f"{flag}: found {layers.shown(assignment)}, expected {expected}.")
        if name in values:
            raise ConfigError(f"{flag}: found the name {name!r} twice, expected each once.")
        values[name] = value
    return values


def group_fields(name: str, chosen: Inference) -> dict[str, Any]:
    """The fields of a server of that group: those of all engines, overridden by the group's own."""
    return {**chosen.engine_fields, **layers.of_table(name, chosen.group_fields)}


def group_of(engine: int, run: RunConfig) -> str | None:
    """The group of engine number `engine`. None: it is in none, as the engines of `--eval-engines` are."""
    last = 0
    for name, count in engine_groups(run).items():
        last += count
        if engine < last:
            return name
    return None


def group_complaints(resolved: Resolved, *, counts_engines: bool) -> Iterator[str]:
    """Unknown groups, and settings that contradict the groups. `counts_engines`: --engines was given."""
    run, groups = resolved.run, engine_groups(resolved.run)
    settings = (f"{ENGINE_GROUP}.{key}" for key in resolved.group_fields)
    yield from server_field_complaints(settings, "engine group", groups, resolved.engine)
    if groups and run.serving.engine_url:
        yield f"{FLAG}: the servers of --engine-url are not started here; leave it out."
    total = sum(groups.values())
    if groups and counts_engines and run.serving.engines != total:
        yield f"--engines: found {run.serving.engines}, but the groups of {FLAG} have {total}; leave it out."
    for name in groups:
        yield from resolved.engine.config.complaints(run, group_fields(name, resolved))


def server_field_complaints(
    settings: Iterable[str], owner: str, names: Collection[str], engine: Part[Any]
) -> Iterator[str]:
    """Unknown names in `settings`, each TABLE.NAME.FIELD, and fields for an engine that takes none.

    `owner`: what a NAME stands for; `names`: the known ones.
    """
    for setting in settings:
        flag, name = flag_name(setting), setting.split(".")[1]
        if name not in names:
            guess = did_you_mean(name, names)
            yield f"{flag} belongs to the {owner} {name!r}, which does not exist.{guess}"
        if not engine.config.table:
            yield f"{flag}: the engine {engine.name!r} takes no fields of its own; leave it out."
