"""Settings of the source `reasoning_gym`."""

from typing import Any

from pydantic import Field

from rlcore import Config, RewardConfig


class ReasoningGymConfig(Config):
    """Settings of the source."""

    datasets: tuple[str, ...] = Field(
        ("chain_sum",), min_length=1, description="names of the procedural datasets, in equal shares"
    )
    settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description='settings of datasets by name: {"chain_sum": {"max_terms": 3}}'
    )
    size: int = Field(1000, ge=2, le=1_000_000, description="prompts of each dataset, held-out ones included")
    held_out: float = Field(0.1, gt=0, lt=1, description="share of the prompts held out, by their content")
    dataset_seed: int = Field(0, ge=0, lt=2**31, description="seed of the datasets")
    chat: bool = Field(True, description="send a question as a user message of a chat, else as plain text")
    system: str = Field("", description="the chat's system message; empty: none")
    suffix: str = Field("", description="text that follows each question")


class ReasoningGymRewardConfig(RewardConfig):
    """Settings of the reward."""

    tag: str = Field(
        "answer",
        pattern=r"^\w*$",
        description="tag of the answer, which the last <tag>…</tag> holds, if there is one",
    )
