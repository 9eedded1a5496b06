"""Settings of the reward `math`."""

from typing import ClassVar

from pydantic import Field

from rlcore import RewardConfig


class MathConfig(RewardConfig):
    r"""Settings of `math`."""

    needs_label: ClassVar[bool] = True
    value_range: ClassVar[tuple[float, float] | None] = (0, 1)

    boxed: bool = Field(False, description=r"only an answer in \boxed{} counts")
    decimals: int = Field(6, ge=0, le=15, description="decimals that two numbers must agree in")
    seconds: float = Field(
        2.0, gt=0, le=600, description="processor time that one answer may take; one that takes more is wrong"
    )
    memory_mib: int = Field(
        1024, ge=64, le=65536, description="memory that one answer may take; one that takes more is wrong"
    )
