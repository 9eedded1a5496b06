"""Settings of the rewards `math`, `deepscaler` and `dapo`."""

from typing import ClassVar

from pydantic import Field

from rlcore import RewardConfig


class ComparisonConfig(RewardConfig):
    """How an answer is compared with the label."""

    needs_label: ClassVar[bool] = True
    value_range: ClassVar[tuple[float, float] | None] = (0, 1)

    decimals: int = Field(
        6, ge=0, le=15, description="decimals that two numbers must agree in; below 0.1, digits"
    )
    seconds: float = Field(
        2.0, gt=0, le=600, description="processor time that one answer may take; one that takes more is wrong"
    )
    memory_mib: int = Field(
        1024, ge=64, le=65536, description="memory that one answer may take; one that takes more is wrong"
    )


class MathConfig(ComparisonConfig):
    r"""Settings of `math`."""

    boxed: bool = Field(False, description=r"only an answer in \boxed{} counts")


class DeepScalerConfig(ComparisonConfig):
    """Settings of `deepscaler`."""


class DapoConfig(ComparisonConfig):
    """Settings of `dapo`."""

    value_range: ClassVar[tuple[float, float] | None] = (-1, 1)

    characters: int = Field(300, ge=1, description="the last characters of a response, which alone are read")
