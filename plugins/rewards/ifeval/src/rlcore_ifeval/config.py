"""Settings of the reward `ifeval`."""

from typing import ClassVar, Literal

from pydantic import Field

from rlcore import RewardConfig


class IfevalConfig(RewardConfig):
    """Settings of `ifeval`."""

    value_range: ClassVar[tuple[float, float] | None] = (0, 1)

    value: Literal["share", "all"] = Field(
        "share", description="the share of the instructions that are followed, or 1 for all, else 0"
    )
    loose: bool = Field(
        False, description="also accept the response without its first or last line, or without asterisks"
    )
