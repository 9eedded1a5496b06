"""The settings of the tracker."""

from typing import Literal

from pydantic import Field

from rlcore import Config


class WandbConfig(Config):
    """Which run of Weights & Biases it is. Its API key is never a setting."""

    project: str = Field("rlcore", min_length=1, description="project of the run")
    entity: str = Field("", description="user or team; empty: your default one")
    run_name: str = Field("", description="name of the run; empty: that of its folder")
    group: str = Field("", description="group of the run; empty: none")
    tags: tuple[str, ...] = Field((), description="tags of the run")
    mode: Literal["online", "offline"] | None = Field(
        None, description="send what is logged, or keep it in the run's folder; none: as WANDB_MODE says"
    )
    samples: int = Field(
        16, ge=0, description="answers of each evaluated set, and samples of each saved rollout, as a table"
    )
