"""Settings of the rewards `remote` and `judge`."""

import re
import string
from typing import Self

from pydantic import Field, field_validator, model_validator

from rlcore.config.parts import RewardConfig


class ServerConfig(RewardConfig):
    """How a server is asked."""

    url: str = Field(pattern=r"^https?://\S+$", description="URL of the server")
    token_env: str = Field(
        "", pattern=r"^\w*$", description="environment variable that holds a bearer token; empty: no token"
    )
    request_timeout: float = Field(30.0, gt=0, le=3600, description="seconds for one request")
    retries: int = Field(3, ge=0, le=100, description="further tries of a request that the server failed")
    retry_budget: float = Field(
        60.0, ge=0, le=3600, description="seconds after which nothing is tried again, for a whole group"
    )
    concurrency: int = Field(16, ge=1, le=1024, description="requests at one time, of one reward worker")


class RemoteConfig(ServerConfig):
    """Settings of `remote`."""

    score_key: str = Field(
        "score", min_length=1, description="key of the score, where the answer is an object"
    )
    parts_key: str = Field("parts", min_length=1, description="key of the named parts, where there are some")


class JudgeConfig(ServerConfig):
    """Settings of `judge`."""

    model: str = Field(min_length=1, description="name of the model that judges")
    template: str = Field(
        "Judge the response to the question.\n\n[Question]\n{prompt}\n\n[Reference answer]\n{label}\n\n"
        "[Response]\n{response}\n\nThink briefly, then end with a line `Score: N`, where N is a number from "
        "0 (useless) to 10 (perfect).",
        min_length=1,
        description="what the judge is asked; {prompt}, {response} and {label} are filled in",
    )
    system: str = Field("", description="the judge's system message; empty: none")
    score_pattern: str = Field(
        r"Score:\s*\**\s*(-?\d+(?:\.\d+)?)",
        min_length=1,
        description="regular expression whose group is the score; of several matches the last",
    )
    low: float = Field(0.0, description="the judge's lowest score, which becomes 0")
    high: float = Field(10.0, description="the judge's highest score, which becomes 1")
    temperature: float = Field(0.0, ge=0, le=2, description="sampling temperature of the judge")
    max_tokens: int = Field(1024, ge=1, description="length of the judge's answer")

    @field_validator("score_pattern")
    @classmethod
    def _has_a_group(cls, pattern: str) -> str:
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        if groups != 1:
            raise ValueError(f"expected one group, found {groups}")
        return pattern

    @field_validator("template")
    @classmethod
    def _fills_in(cls, template: str) -> str:
        try:
            names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        except ValueError as error:
            raise ValueError(f"not a template: {error}") from error
        if "response" not in names or names - {"prompt", "response", "label"}:
            raise ValueError("expected {response}, and of others {prompt} and {label} only ({{ is a brace)")
        return template

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) must be less than high ({self.high:g})")
        return self
