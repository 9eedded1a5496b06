"""Settings of the reward `ifeval`."""

from typing import Literal

from pydantic import Field

from rlcore.config.parts import RewardConfig


class IfevalConfig(RewardConfig):
    """Settings of `ifeval`."""

    value: Literal["share", "all"] = Field(
        "share",
        description="the share of the instructions that are followed, or 1 for all, else 0",
    )
    loose: bool = Field(
        False, description="also accept the response without its first or last line, or without asterisks"
    )
