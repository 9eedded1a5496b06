"""The settings of the hook."""

import re

from pydantic import Field, field_validator

from rlcore import Config


class FreezeConfig(Config):
    """Which parameters stay as they are."""

    pattern: tuple[str, ...] = Field(
        min_length=1, description="regular expression; parameters are frozen if it is found in their names"
    )
    invert: bool = Field(False, description="freeze all other parameters instead")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: tuple[str, ...]) -> tuple[str, ...]:
        for expression in pattern:
            try:
                re.compile(expression)
            except re.error as error:
                raise ValueError(f"{expression!r} is no regular expression ({error})") from error
        return pattern
