"""The settings of the hook."""

import re

from pydantic import Field, field_validator

from rlcore import Config


class FreezeConfig(Config):
    """Which parameters stay as they are."""

    pattern: tuple[str, ...] = Field(
        min_length=1, description="regular expression that is found in the names of frozen parameters"
    )
    invert: bool = Field(False, description="freeze what no pattern is found in, instead")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: tuple[str, ...]) -> tuple[str, ...]:
        for one in pattern:
            try:
                re.compile(one)
            except re.error as error:
                raise ValueError(f"{one!r} is no regular expression ({error})") from error
        return pattern
