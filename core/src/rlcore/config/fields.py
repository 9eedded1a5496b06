"""The fields of configs: their marks, their types in words, and values from the text of a flag."""

import json
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from rlcore.api.config import Config, fields_of
from rlcore.api.marks import Mark
from rlcore.api.types import parse_json

_WORDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false", Path: "a path"}
_PLURALS = {int: "integers", float: "numbers", str: "texts", Path: "paths"}
_BOUNDS = {
    "ge": "of at least {}",
    "gt": "above {}",
    "le": "of at most {}",
    "lt": "below {}",
    "multiple_of": "that is a multiple of {}",
    "min_length": "with at least {} items",
    "max_length": "with at most {} items",
    "pattern": "that matches {}",
}


def choices(annotation: Any) -> tuple[Any, ...]:
    """The members of a union without None; of anything else, itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(choice for choice in get_args(annotation) if choice is not type(None))
    return (annotation,)


def is_optional(annotation: Any) -> bool:
    """Whether None is allowed."""
    return type(None) in get_args(annotation)


def is_list(annotation: Any) -> bool:
    """Whether a flag of it is repeated."""
    kinds = (tuple, list, set, frozenset)
    return any(get_origin(choice) in kinds or choice in kinds for choice in choices(annotation))


def describe(field: FieldInfo) -> str:
    """`an integer of at least 1`, `one of "a", "b"`, `a list of texts` …"""
    words = " or ".join(_word(choice) for choice in choices(field.annotation))
    bounds = [
        text.format(getattr(rule, name))
        for rule in field.metadata
        for name, text in _BOUNDS.items()
        if getattr(rule, name, None) is not None
    ]
    described = f"{words} {' and '.join(bounds)}" if bounds else words
    described = described.replace("with at least 1 items", "that is not empty")
    return f'{described}, or "none"' if is_optional(field.annotation) else described


def from_text(annotation: Any, text: Any) -> Any:
    """The value that the text of a flag (or a list of texts, or a bool) has as an `annotation`.

    Text that cannot be parsed is returned unchanged, so that validation refuses it.
    """
    if isinstance(text, list | tuple):
        kinds = _item_types(annotation, len(text))
        return [from_text(kind, item) for kind, item in zip(kinds, text, strict=True)]
    if not isinstance(text, str):
        return text
    for choice in choices(annotation):
        value = _parsed(choice, text)
        if value is not text:  # the first type of a union that can read it
            return value
    return text


def _item_types(annotation: Any, count: int) -> list[Any]:
    for choice in choices(annotation):
        inner = get_args(choice)
        # `tuple[int, str]` has a type for each place, and any other list one for all.
        if get_origin(choice) is tuple and len(inner) == count and inner[-1] is not Ellipsis:
            return list(inner)
        if inner:
            return [inner[0]] * count
    return [str] * count


def _parsed(choice: Any, text: str) -> Any:
    try:
        if choice is bool:
            return {"true": True, "false": False}[text.lower()]
        if choice in (int, float):
            return choice(text)
        if get_origin(choice) is Literal:
            return next(item for item in get_args(choice) if str(item) == text)
        if choice in (str, Path, Any) or (isinstance(choice, type) and issubclass(choice, Enum)):
            return text
        return parse_json(text)
    except (ValueError, KeyError, StopIteration):
        return text


def _word(choice: Any) -> str:
    inner = get_args(choice)
    if get_origin(choice) is Literal:
        return "one of " + ", ".join(json.dumps(item) for item in inner)
    if isinstance(choice, type) and issubclass(choice, Enum):
        return "one of " + ", ".join(json.dumps(item.value) for item in choice)
    if is_list(choice):
        return f"a list of {_PLURALS[inner[0]]}" if inner and inner[0] in _PLURALS else "a list"
    if get_origin(choice) in (dict, Mapping) or choice is dict:
        return "a table"
    return _WORDS.get(choice, getattr(choice, "__name__", str(choice)))


def has_mark(field: FieldInfo, mark: Mark) -> bool:
    """Whether `setting` has declared `field` with `mark`."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and mark in Mark(extra.get("marks", 0))


def marked(config: type[Config], mark: Mark) -> tuple[str, ...]:
    """The names of the settings of `config` that have `mark`."""
    return tuple(name for name, field in fields_of(config).items() if has_mark(field, mark))
