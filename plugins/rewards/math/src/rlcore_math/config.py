"""Settings of the reward `math`."""

from typing import ClassVar

from pydantic import Field

from rlcore.config.parts import RewardConfig


class MathConfig(RewardConfig):
    r"""Settings of `math`."""

    needs_label: ClassVar[bool] = True
    value_range: ClassVar[tuple[float, float] | None] = (0, 1)

    boxed: bool = Field(False, description=r"only an answer in \boxed{} counts")
    decimals: int = Field(6, ge=0, le=15, description="decimals that two numbers must agree in")
