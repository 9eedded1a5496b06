"""The settings of the loss."""

from pydantic import Field

from rlcore import LossConfig


class CispoConfig(LossConfig):
    """Settings of the loss `cispo`. By default there is no lower bound, and 5 is the largest weight."""

    clip_low: float = Field(1.0, gt=0, le=1, description="a weight is at least 1 - this; 1: no lower bound")
    clip_high: float = Field(4.0, gt=0, le=100, description="a weight is at most 1 + this")
