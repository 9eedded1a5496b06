"""The settings of the loss."""

from pydantic import Field

from rlcore import LossConfig


class GspoConfig(LossConfig):
    """Settings of the loss `gspo`. The ratio is a mean over a sequence, so its clips are narrow."""

    clip_low: float = Field(3e-4, gt=0, le=1, description="the ratio is clipped below 1 - this")
    clip_high: float = Field(4e-4, gt=0, le=100, description="the ratio is clipped above 1 + this")


class GmpoConfig(LossConfig):
    """Settings of the loss `gmpo`: the paper's bounds, of a token's log-ratio."""

    clip_low: float = Field(
        0.4, gt=0, le=20, description="a log-ratio is clipped below minus this where A < 0"
    )
    clip_high: float = Field(0.4, gt=0, le=20, description="a log-ratio is clipped above this where A > 0")


class VespoConfig(LossConfig):
    """Settings of the loss `vespo`: exponents and rates of the weight W^k exp(λ (1 - W))."""

    k_pos: float = Field(2.0, ge=0, le=100, description="k where the advantage is positive")
    lambda_pos: float = Field(3.0, ge=0, le=100, description="λ where the advantage is positive")
    k_neg: float = Field(3.0, ge=0, le=100, description="k elsewhere")
    lambda_neg: float = Field(2.0, ge=0, le=100, description="λ elsewhere")
