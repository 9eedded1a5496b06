"""The settings."""

from typing import ClassVar

from pydantic import Field
from rlcore import RewardConfig


class MyPluginConfig(RewardConfig):
    """Settings of the reward `my_plugin`."""

    value_range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    target: int = Field(100, ge=1, description="tokens at which the reward is 0")
