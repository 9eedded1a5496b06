"""The settings of the loss."""

from pydantic import Field

from rlcore import LossConfig


class SapoConfig(LossConfig):
    """Settings of the loss `sapo`. The higher a temperature, the faster a token fades off policy."""

    tau_pos: float = Field(1.0, gt=0, le=100, description="temperature where the advantage is positive")
    tau_neg: float = Field(1.05, gt=0, le=100, description="temperature elsewhere")
