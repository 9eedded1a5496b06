"""The settings."""

from pydantic import Field
from rlcore import CorrectionConfig


class MyPluginConfig(CorrectionConfig):
    """Settings of the correction `my_plugin`."""

    rate: float = Field(1.0, ge=0, description="how fast the weight falls; 0: every weight is 1")
