"""The settings of the loss."""

from pydantic import Field

from rlcore import LossConfig


class GspoConfig(LossConfig):
    """Settings of the loss `gspo`. The ratio is a mean over a sequence, so its clips are narrow."""

    clip_low: float = Field(3e-4, gt=0, le=1, description="the ratio is clipped below 1 - this")
    clip_high: float = Field(4e-4, gt=0, le=100, description="the ratio is clipped above 1 + this")
