"""The base of every config table: frozen, bounded, explained, unknown keys refused."""

import os
import re

from pydantic import BaseModel, ConfigDict

NAME = re.compile(r"[a-z][a-z0-9_]*")
"""What a part, a set of prompts, a frozen model or a part of a score may be called."""


class Config(BaseModel):
    """One table of settings.

    Each field has a default (unless the user must choose), bounds, and one line of help as its
    `description`. Instances are frozen; a changed copy is made by `model_copy(update=…)` through validation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


def absolute_path(path: str | None) -> str | None:
    """For a field's validator: a path that a resumed run finds again, wherever it is resumed.

    Links stay: an interpreter in a virtual environment is one.
    """
    return None if path is None else os.path.abspath(path)


def flag_name(name: str) -> str:
    """`loss.clip_high` → `--loss.clip-high`."""
    return "--" + name.replace("_", "-")
