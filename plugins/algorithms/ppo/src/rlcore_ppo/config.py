"""The settings of the parts."""

from typing import ClassVar

from pydantic import Field

from rlcore import AdvantageConfig, Input, ValueLossConfig


class GaeConfig(AdvantageConfig):
    """Settings of the advantage `gae`."""

    needs: ClassVar[frozenset[Input]] = frozenset({Input.VALUES})

    gamma: float = Field(
        1.0, ge=0, le=1, description="discount of a token's reward, for each token before it"
    )
    lam: float = Field(0.95, ge=0, le=1, description="weight of later errors; 0: one step, 1: whole returns")


class ClippedConfig(ValueLossConfig):
    """Settings of the value loss `clipped`."""

    clip: float | None = Field(
        0.2, gt=0, description="how far a value may move from the one before the update; none: no bound"
    )
