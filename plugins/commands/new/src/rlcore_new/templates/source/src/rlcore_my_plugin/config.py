"""The settings."""

from pydantic import Field
from rlcore import Config


class MyPluginConfig(Config):
    """Settings of the task `my_plugin`."""

    digits: int = Field(3, ge=1, le=5, description="digits of a prompt")
    held_out: float = Field(0.1, gt=0, lt=1, description="share of the prompts to evaluate on")
