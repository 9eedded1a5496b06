"""The settings."""

from pydantic import Field
from rlcore import Config


class MyPluginConfig(Config):
    """Settings of the callback `my_plugin`."""

    minutes: float = Field(60.0, gt=0, description="time that the steps of the run may take together")
