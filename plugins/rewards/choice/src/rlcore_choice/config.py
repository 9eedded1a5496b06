"""Settings of the reward `multiple_choice`."""

from typing import ClassVar

from pydantic import Field

from rlcore import RewardConfig


class MultipleChoiceConfig(RewardConfig):
    """Settings of `multiple_choice`."""

    needs_label: ClassVar[bool] = True
    value_range: ClassVar[tuple[float, float] | None] = (0, 1)

    choices: int = Field(
        4, ge=2, le=26, description="options of a question whose metadata list no choices: A, B, …"
    )
    marked: bool = Field(
        False, description="only a marked answer counts: boxed, or after the word answer; no lone last letter"
    )
