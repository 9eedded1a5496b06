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
        for one in pattern:
            try:
                re.compile(one)
            except re.error as error:
                raise ValueError(f"{one!r} is no regular expression ({error})") from error
        return pattern
