"""The settings."""

from pydantic import Field
from rlcore import ValueLossConfig


class MyPluginConfig(ValueLossConfig):
    """Settings of the value loss `my_plugin`."""

    delta: float = Field(1.0, gt=0, description="error at which the loss turns from a square to a line")
