"""The settings of the tasks."""

from pydantic import Field

from rlcore import Config


class TaskConfig(Config):
    """What all procedural tasks share."""

    size: int = Field(10_000, ge=2, le=1_000_000, description="distinct prompts, held-out ones included")
    held_out: float = Field(0.2, gt=0, lt=1, description="share of the prompts held out, by their content")
    split_seed: int = Field(0, ge=0, lt=2**31, description="seed of the choice of prompts and of the split")


class DigitsConfig(TaskConfig):
    """Digits in, digits out."""

    digits: int = Field(4, ge=1, le=18, description="digits of a prompt")


class AddConfig(TaskConfig):
    """Two numbers in, their sum out."""

    digits: int = Field(2, ge=1, le=9, description="digits of a summand, zeros in front included")
