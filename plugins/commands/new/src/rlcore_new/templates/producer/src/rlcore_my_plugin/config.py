"""The settings."""

from typing import ClassVar

from pydantic import Field
from rlcore import ProducerConfig


class MyPluginConfig(ProducerConfig):
    """Settings of the producer `my_plugin`."""

    asynchronous: ClassVar[bool | None] = False  # it is for synchronous runs alone

    share: float = Field(0.5, gt=0, le=1, description="share of the groups that is trained on")
