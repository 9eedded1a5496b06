"""The settings."""

from pydantic import Field
from rlcore import Config


class MyPluginConfig(Config):
    """Settings of the tracker `my_plugin`."""

    metric: str = Field("rollout/reward_mean", min_length=1, description="key of metrics.jsonl to write")
