"""The settings."""

from pydantic import Field
from rlcore import Config


class MyPluginConfig(Config):
    """Settings of the generator `my_plugin`."""

    attempts: int = Field(2, ge=1, le=100, description="how often a prompt is asked at most")
