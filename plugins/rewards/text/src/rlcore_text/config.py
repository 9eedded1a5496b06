"""Settings of the text rewards."""

import re
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from rlcore import RewardConfig


class ExactMatchConfig(RewardConfig):
    """Settings of `exact_match`."""

    needs_label: ClassVar[bool] = True
    value_range: ClassVar[tuple[float, float] | None] = (0, 1)

    strip: bool = Field(True, description="ignore white space around response and label")
    casefold: bool = Field(False, description="ignore upper and lower case")


class TokenMatchConfig(RewardConfig):
    """Settings of `token_match`."""

    needs_label: ClassVar[bool] = True
    value_range: ClassVar[tuple[float, float] | None] = (0, 1)

    unit: Literal["character", "word"] = Field("character", description="what counts as one token")
    casefold: bool = Field(False, description="ignore upper and lower case")


class F1Config(RewardConfig):
    """Settings of `f1`."""

    needs_label: ClassVar[bool] = True
    value_range: ClassVar[tuple[float, float] | None] = (0, 1)

    normalize: bool = Field(True, description="ignore case, punctuation and English articles, as SQuAD does")


class LengthRankConfig(RewardConfig):
    """Settings of `length_rank`: none."""

    min_group_size: ClassVar[int] = 2
    value_range: ClassVar[tuple[float, float] | None] = (0, 1)


class RandomConfig(RewardConfig):
    """Settings of `random`."""

    value_range: ClassVar[tuple[float, float] | None] = (0, 1)

    chance: float = Field(0.5, ge=0, le=1, description="share of the samples that score 1")


class FormatConfig(RewardConfig):
    """Settings of `format`."""

    value_range: ClassVar[tuple[float, float] | None] = (0, 1)

    pattern: str = Field(
        r"\s*<think>.+</think>\s*<answer>.+</answer>\s*",
        min_length=1,
        description="regular expression (Python's) that the whole response must match",
    )
    dotall: bool = Field(True, description="let the dot match a line break too")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern
