"""The settings."""

from pydantic import Field
from rlcore import FilterConfig


class MyPluginConfig(FilterConfig):
    """Settings of the filter `my_plugin`."""

    tokens: int = Field(1, ge=1, description="mean response tokens that a group must have")
