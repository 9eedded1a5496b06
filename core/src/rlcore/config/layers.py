"""Layers of settings, and the one place where raw settings become a frozen config.

A layer maps dotted names (`steps`, `loss`, `loss.clip_high`) to raw values and remembers where they came
from, so that an error can name the flag or the file.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from rlcore.api.config import Config, fields_of, flag_name, named_fields, nested
from rlcore.api.errors import ConfigError
from rlcore.config.fields import describe, from_text, is_optional
from rlcore.config.toml import NONE

ConfigT = TypeVar("ConfigT", bound=Config)
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Settings of one origin. `label`: its name in errors; empty: the command line.

    `written_as`: what the user wrote in place of a setting, where that was a short form, or an option that
    nothing knows, with its dashes.
    """

    label: str
    values: Mapping[str, Any]
    written_as: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def at(self, name: str) -> str:
        """Setting `name` as an error names it, so that the user finds it: a flag, or a file and its key."""
        name = self.written_as.get(name, name)
        if name.startswith("--" if self.label else "-"):
            return name
        return f"{self.label}: {name}" if self.label else flag_name(name)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A raw value and the layer that gave it."""

    value: Any
    layer: Layer


def merge(layers: Iterable[Layer]) -> dict[str, Setting]:
    """Every setting, with the value of the last layer that has it."""
    return {name: Setting(value=layer.values[name], layer=layer) for layer in layers for name in layer.values}


def of_table(table: str, values: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """What stands in `table`, by its names there. `values`: by dotted names."""
    prefix = f"{table}."
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def build(config: type[ConfigT], settings: Mapping[str, Setting], table: str = "") -> ConfigT:
    """`config` from the settings of `table`, or from those of the run where it is empty.

    Raises `ConfigError`: one sentence that names the setting, what was found and what was expected.
    """
    entries = of_table(table, settings) if table else settings
    raw: dict[str, Any] = {}
    fields = fields_of(config)
    for key, setting in entries.items():
        field = fields.get(key) or named_fields(config, key).get(key)
        if field is None:
            continue
        raw[key] = setting.value
        if setting.value == NONE and is_optional(field.annotation):
            raw[key] = None
        elif not setting.layer.label:  # a flag gives text, a file typed values
            raw[key] = from_text(field.annotation, setting.value)
    try:
        # By way of JSON, where strict validation still takes a list for a tuple and a text for a path.
        return config.model_validate_json(json.dumps(nested(config, raw), default=str), strict=True)
    except ValidationError as error:
        raise ConfigError(_sentence(config, error, settings, table)) from error


def _sentence(
    config: type[Config], error: ValidationError, settings: Mapping[str, Setting], table: str
) -> str:
    first = error.errors(include_url=False)[0]  # one sentence: the next run tells of the next fault
    reason = str(first.get("ctx", {}).get("error", first["msg"])).removesuffix(".")
    fields, places = fields_of(config), [str(place) for place in first["loc"]]
    # `ROLE.lr` is in its table, and `lr` in a group whose name no setting has in front.
    dotted = [".".join(places[begin:end]) for begin in range(2) for end in range(len(places), begin, -1)]
    found = ((name, fields.get(name) or named_fields(config, name).get(name)) for name in dotted)
    key, field = next(((name, field) for name, field in found if field is not None), ("", None))
    if field is None:
        return f"[{table}]: {reason}." if table and not reason.startswith("--") else f"{reason}."
    name = f"{table}.{key}" if table else key
    if first["type"] == "missing":
        return f"{flag_name(name)} is missing: {field.description or describe(field)}."
    setting = settings[name]
    is_plain = first["type"] in ("int_type", "float_type", "bool_type")
    is_quoted = is_plain and setting.layer.label and isinstance(setting.value, str)
    at = f"{setting.layer.at(name)}: found {'the text ' if is_quoted else ''}{shown(setting.value)}"
    if first["type"] in ("value_error", "assertion_error"):
        return f"{at}: {reason}."
    return f"{at}, expected {describe(field)}."


def shown(value: Any) -> str:
    """A value as an error shows it, in at most 80 characters."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
