"""The settings."""

from pydantic import Field
from rlcore_local.config import LocalConfig


class MyPluginConfig(LocalConfig):
    """Settings of the engine `my_plugin`: those of `local`, and the priority."""

    niceness: int = Field(10, ge=0, le=19, description="how far the server gives way to other processes")
