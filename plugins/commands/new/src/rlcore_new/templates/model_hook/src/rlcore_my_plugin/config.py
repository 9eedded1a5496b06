"""The settings."""

from pydantic import Field
from rlcore import Config


class MyPluginConfig(Config):
    """Settings of the model hook `my_plugin`."""

    word: str = Field("embed", min_length=1, description="what is in the names of frozen parameters")
