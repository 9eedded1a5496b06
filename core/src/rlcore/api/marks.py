"""What a setting of a run says of itself, beside its type and its bounds."""

from enum import Flag, auto
from typing import Any

from pydantic import Field


class Mark(Flag):
    """Who uses a setting, and when."""

    COMMON = auto()
    """Many people do: `--help` shows it."""
    SAMPLING = auto()
    """A run whose policy samples. Nothing reads it where the data give the responses."""
    TRAINING = auto()
    """A run that trains. Nothing reads it with `--only rollout`."""
    EVALUATION = auto()
    """`rlcore eval` too, which has no trainer."""
    RESUMABLE = auto()
    """A resumed run may change it: the steps already taken would have been the same."""
    PATH = auto()
    """It names a file or folder, which a resume finds from any working directory."""


COMMON, SAMPLING, TRAINING, EVALUATION, RESUMABLE, PATH = Mark
NO_MARK = Mark(0)


def setting(default: Any, description: str, marks: Mark = NO_MARK, **bounds: Any) -> Any:
    """A field with its one line of help. `bounds`: those of pydantic's `Field`."""
    return Field(default, description=description, json_schema_extra={"marks": marks.value}, **bounds)
