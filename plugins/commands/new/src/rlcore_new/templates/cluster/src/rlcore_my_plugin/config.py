"""The settings."""

from pydantic import Field
from rlcore_processes.config import ProcessesConfig


class MyPluginConfig(ProcessesConfig):
    """Settings of the cluster `my_plugin`."""

    leave_gpus: int = Field(1, ge=0, description="how many of this machine's GPUs the run leaves to others")
