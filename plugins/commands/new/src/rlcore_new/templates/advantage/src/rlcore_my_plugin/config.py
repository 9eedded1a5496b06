"""The settings."""

from typing import ClassVar

from pydantic import Field
from rlcore import AdvantageConfig


class MyPluginConfig(AdvantageConfig):
    """Settings of the advantage `my_plugin`."""

    min_group_size: ClassVar[int] = 2  # it compares siblings

    scale: float = Field(1.0, gt=0, description="what each advantage is multiplied by")
