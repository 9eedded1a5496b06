"""The settings of the tracker."""

from pydantic import Field

from rlcore import Config


class TensorboardConfig(Config):
    """What goes into the event files, and where they are."""

    directory: str = Field("", description="folder of the event files; empty: RUN/tensorboard")
    samples: int = Field(
        4,
        ge=0,
        description="answers of each evaluated set, and samples of each saved rollout, written as text",
    )
    flush_every: int = Field(30, ge=1, description="seconds between writes to the disk")
