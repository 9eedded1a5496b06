"""The settings of the filters."""

from collections.abc import Iterable, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from rlcore import FilterConfig, Neighbor, RunConfig


class OverlongConfig(FilterConfig):
    """Settings of the filter `overlong`."""

    mode: Literal["mask", "drop", "penalty"] = Field(
        "mask",
        description="mask: truncated responses are not trained on; drop: they drop their group; penalty: "
        "long responses lose reward",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="of mode penalty: length at which the penalty is 1; usually as --max-response-tokens",
    )
    buffer: int | None = Field(
        None, ge=1, description="of mode penalty: over so many tokens before max_tokens it grows from 0 to 1"
    )

    @model_validator(mode="after")
    def _settings_of_the_mode(self) -> Self:
        at = "--filter.overlong"
        penalty_settings = [self.max_tokens is not None, self.buffer is not None]
        if self.mode == "penalty" and not all(penalty_settings):
            raise ValueError(f"{at}.mode penalty needs {at}.max-tokens and {at}.buffer")
        if self.mode != "penalty" and any(penalty_settings):
            raise ValueError(f"{at}.max-tokens and {at}.buffer belong to {at}.mode penalty")
        if self.max_tokens is not None and self.buffer is not None and self.buffer > self.max_tokens:
            raise ValueError(f"{at}.buffer {self.buffer} is larger than {at}.max-tokens {self.max_tokens}")
        return self

    @property
    def lowers_rewards(self) -> bool:
        return self.mode == "penalty"


class DuplicatesConfig(FilterConfig):
    """Settings of the filter `duplicates`."""

    min_distinct: int = Field(2, ge=2, le=100_000, description="distinct responses that a group must have")

    def needed_group_size(self) -> int:
        """Smaller groups are all dropped."""
        return self.min_distinct


class StalenessConfig(FilterConfig):
    """Settings of the filter `staleness`. Only asynchronous runs have samples of several weight versions."""

    max_age: int = Field(
        1,
        ge=0,
        le=100_000,
        description="how many publications a token may be older than the newest one of its group",
    )
    mode: Literal["mask", "drop"] = Field(
        "mask", description="mask: older samples are not trained on; drop: their whole group is dropped"
    )

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        """It would find nothing in a synchronous run."""
        if not run.asynchrony.is_asynchronous:
            yield f"--filter: found {name!r}, but no sample is stale; add --max-staleness."


class PreferConfig(FilterConfig):
    """Settings of the filter `prefer`, for asynchronous runs."""

    by: Literal["newest", "reward_spread", "priority"] = Field(
        "newest",
        description="which finished groups go first; newest: those of the newest weights; reward_spread: "
        "those whose rewards differ most; priority: those with the largest `priority` in the prompt's "
        "metadata",
    )

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        """A synchronous run trains on all that it has made."""
        if not run.asynchrony.is_asynchronous:
            yield f"--filter: found {name!r}, but no group waits for another; add --max-staleness."


class RewardRangeConfig(FilterConfig):
    """Settings of the filter `reward_range`. The defaults are for rewards from 0 to 1."""

    low: float = Field(0.2, description="lowest mean reward of a group that is kept")
    high: float = Field(0.8, description="highest mean reward of a group that is kept")

    @model_validator(mode="after")
    def _low_before_high(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self
