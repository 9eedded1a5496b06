"""The settings of `replay`."""

from typing import Literal

from pydantic import Field, field_validator

from rlcore import Config, absolute_path


class ReplayConfig(Config):
    """Where the samples are, and what becomes of a prompt without any."""

    path: str = Field(
        description="RUN/samples of a run with --save-rollouts-every, or one rollout-N.jsonl of it"
    )
    missing: Literal["fail", "generate"] = Field(
        "fail", description="a sample that was not saved fails, or the engine answers"
    )

    _absolute = field_validator("path")(absolute_path)
