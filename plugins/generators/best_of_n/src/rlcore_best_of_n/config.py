"""The settings of `best_of_n`."""

from typing import Literal

from pydantic import Field

from rlcore import GeneratorConfig


class BestOfNConfig(GeneratorConfig):
    """How many candidates, and which is kept."""

    n: int = Field(4, ge=2, le=1024, description="candidates for each sample of a group")
    by: Literal["reward", "log_prob"] = Field(
        "reward", description="the best has the highest reward, or the highest mean log-prob of its tokens"
    )
