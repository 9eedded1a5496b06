"""The base of every config table: frozen, bounded, explained, unknown keys refused."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from typing_extensions import TypeIs

from rlcore.api.diagnosis import Diagnosis
from rlcore.api.records import NAME


class Config(BaseModel):
    """One table of settings.

    Each field has a default (unless the user must choose), bounds, and one line of help as its
    `description`. Instances are frozen; a changed copy is made by `model_copy(update=…)` through validation.
    """

    # defer_build: a command reads the fields of every class, and validates few of them.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    def diagnose(self) -> Iterable[Diagnosis]:
        """What the part needs of this machine, for `rlcore doctor`: packages, programs, servers.

        It may import packages and ask servers as the part would, but must answer within seconds. A
        `UserError` that it raises counts as a finding.
        """
        return ()


def absolute_path(path: str | None) -> str | None:
    """For a field's validator: the absolute path, which a run finds again when it is resumed from another
    folder.

    Symbolic links stay as they are: the interpreter of a virtual environment is one.
    """
    return None if path is None else os.path.abspath(path)


def flag_name(name: str) -> str:
    """`loss.clip_high` → `--loss.clip-high`."""
    return "--" + name.replace("_", "-")


class Table(Config):
    """A group whose settings have its name in front, as in `--ROLE.lr`. The table may hold tables of the
    user's own names, as in `--ROLE.math.url`: these are the extras of the class, and their class is
    `named`.
    """

    named: ClassVar[type[Config] | None] = None


def fields_of(config: type[Config]) -> dict[str, FieldInfo]:
    """Name → field of every setting. A field that is a `Config` is a group: its fields stand for it."""
    fields: dict[str, FieldInfo] = {}
    for name, field in config.model_fields.items():
        group = field.annotation
        if is_group(group):
            prefix = f"{name}." if issubclass(group, Table) else ""
            fields |= {prefix + key: inner for key, inner in fields_of(group).items()}
        else:
            fields[name] = field
    return fields


def named_fields(config: type[Config], name: str) -> dict[str, FieldInfo]:
    """Name → field of each setting in the table of the user's own name that `name` begins with, such as that
    of `ROLE.math.url`; empty: there is none.
    """
    table, own, *_ = *name.split("."), ""
    group = config.model_fields[table].annotation if table in config.model_fields else None
    if not (isinstance(group, type) and issubclass(group, Table) and group.named and NAME.fullmatch(own)):
        return {}
    return {f"{table}.{own}.{key}": field for key, field in group.named.model_fields.items()}


def values_of(config: Config) -> dict[str, Any]:
    """Name → value of every setting, by the names of `fields_of`."""
    values: dict[str, Any] = {}
    for name, value in config:
        if isinstance(value, Config):
            prefix = f"{name}." if isinstance(value, Table) else ""
            values |= {prefix + key: inner for key, inner in values_of(value).items()}
        else:
            values[name] = value
    return values


def tree_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`{"loss.clip": 1}` → `{"loss": {"clip": 1}}`."""
    tree: dict[str, Any] = {}
    for name, value in settings.items():
        *tables, key = name.split(".")
        into = tree
        for table in tables:
            into = into.setdefault(table, {})
        into[key] = value
    return tree


def nested(config: type[Config], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flat `settings` as pydantic validates them: each within its group, the others at the top."""
    raw = tree_of(settings)
    for name, field in config.model_fields.items():
        group = field.annotation
        if is_group(group) and not issubclass(group, Table):
            raw[name] = {key: raw.pop(key) for key in group.model_fields if key in raw}
    return raw


def is_group(annotation: Any) -> TypeIs[type[Config]]:
    """Whether a field of that type is a group of settings."""
    return isinstance(annotation, type) and issubclass(annotation, Config)
