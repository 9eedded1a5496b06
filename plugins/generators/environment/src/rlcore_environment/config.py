"""The settings of the generator, the reward and the source."""

from typing import Literal

from pydantic import Field

from rlcore import Config, Json, RewardConfig


class EnvironmentConfig(Config):
    """Which environment, and its limits."""

    kind: Literal["class", "gymnasium", "openenv", "textarena", "verifiers"] = Field(
        "class",
        description="what `environment` names: a class of one's own, or an environment of that package",
    )
    environment: str = Field(
        min_length=1,
        description="module:Class, the id in the package's registry, or an OpenEnv server's URL",
    )
    options: dict[str, Json] = Field(
        default_factory=dict, description="keyword arguments of the class or of the package's make function"
    )
    max_environments: int | None = Field(
        None, ge=1, description="environments at the same time; others wait. None: as many as samples"
    )
    max_turns: int = Field(16, ge=1, description="answers of the policy; then the sample is truncated")
    max_turn_tokens: int | None = Field(
        None, ge=1, description="tokens of one answer; none: what is left of --max-response-tokens"
    )
    reset_timeout: float = Field(30.0, gt=0, description="seconds that a reset may take")
    step_timeout: float = Field(30.0, gt=0, description="seconds that a step may take")
    observation: str = Field(
        "{observation}", pattern=r"\{observation\}", description="how an observation follows a prompt of text"
    )


class EnvironmentRewardConfig(RewardConfig):
    """Where the rewards count."""

    credit: Literal["turn", "episode"] = Field(
        "turn", description="each at the end of its turn, or their sum at the end of the response"
    )


class EpisodesConfig(Config):
    """A prompt and seeds."""

    text: str = Field(min_length=1, description="what stands before the first observation")
    chat: bool = Field(False, description="send the text as the user's message of a chat")
    size: int = Field(10_000, ge=2, le=1_000_000, description="seeds, held-out ones included")
    held_out: int = Field(256, ge=1, description="seeds that are only evaluated")
    first_seed: int = Field(0, ge=0, lt=2**31, description="the smallest seed")
