"""Settings of the rewards `remote`, `judge` and `reward_model`."""

import re
import string
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from rlcore import AsksChat, AsksScores, RewardConfig, frozen_name


class ServerConfig(RewardConfig):
    """How a server is asked."""

    url: str = Field(pattern=r"^https?://\S+$", description="URL of the server")
    token_env: str = Field(
        "", pattern=r"^\w*$", description="environment variable that holds a bearer token; empty: no token"
    )
    request_timeout: float = Field(30.0, gt=0, le=3600, description="seconds for one request")
    retries: int = Field(
        3,
        ge=0,
        le=100,
        description="how often a failed request is repeated; a frozen model is asked until `retry_budget` is "
        "used up",
    )
    retry_budget: float = Field(
        60.0, ge=0, le=3600, description="seconds after which no request of a group is repeated"
    )


class EachConfig(ServerConfig):
    """How a server is asked about each sample by itself."""

    concurrency: int = Field(16, ge=1, le=1024, description="requests at one time, of one reward worker")


class RemoteConfig(EachConfig):
    """Settings of `remote`."""

    @field_validator("url", mode="before")
    @classmethod
    def _is_a_url(cls, url: object) -> object:
        if isinstance(url, str) and frozen_name(url) is not None:
            raise ValueError(
                "expected a URL: a frozen model answers no such requests; take judge or reward_model"
            )
        return url

    score_key: str = Field("score", min_length=1, description="key of the score, if the answer is an object")
    parts_key: str = Field("parts", min_length=1, description="key of the named parts, if there are any")


class JudgeConfig(AsksChat, EachConfig):
    """Settings of `judge`."""

    model: str = Field("", description="name of the model that judges, as the server at the URL calls it")
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
        return _checked_template(template, "prompt", "label")

    @model_validator(mode="after")
    def _names_a_judge(self) -> Self:
        is_frozen = frozen_name(self.url) is not None
        if not (is_frozen or self.model):
            raise ValueError(
                "model is missing: the name of the model that judges, which a server at a URL needs"
            )
        if is_frozen:
            _refuse(self, "model", "token_env")
        return self

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) must be less than high ({self.high:g})")
        return self


class RewardModelConfig(AsksScores, ServerConfig):
    """Settings of `reward_model`."""

    sigmoid: bool = Field(False, description="turn the score into a number from 0 to 1")

    @field_validator("tokenizer")
    @classmethod
    def _found_from_anywhere(cls, tokenizer: str) -> str:
        return str(Path(tokenizer).resolve()) if tokenizer else ""

    @field_validator("template")
    @classmethod
    def _fills_in(cls, template: str) -> str:
        return _checked_template(template, "prompt") if template else ""

    @model_validator(mode="after")
    def _has_a_text(self) -> Self:
        if frozen_name(self.url) is not None:
            _refuse(self, "tokenizer", "token_env")
        elif bool(self.tokenizer) == bool(self.template):
            raise ValueError(
                "a server at a URL needs either tokenizer, the directory of its model's tokenizer, whose "
                "chat template makes the text that is scored, or template"
            )
        return self


def _checked_template(template: str, *others: str) -> str:
    """`template`, which has {response}, and else `others` only."""
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ValueError(f"not a template: {error}") from error
    if "response" not in names or names - {"response", *others}:
        known = " and ".join(f"{{{name}}}" for name in others)
        raise ValueError(f"expected {{response}}, and of others {known} only ({{{{ is a brace)")
    return template


def _refuse(config: ServerConfig, *names: str) -> None:
    """Settings that are for a server at a URL alone."""
    for name in names:
        if getattr(config, name):
            raise ValueError(f"{name} has no effect on {config.url}, which the run serves; leave it out")
