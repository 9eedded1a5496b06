"""The settings."""

from pydantic import Field
from rlcore import LossConfig


class MyPluginConfig(LossConfig):
    """Settings of the loss `my_plugin`."""

    ceiling: float = Field(2.0, gt=1, description="a larger ratio counts as this, without a gradient")
