"""Settings of the reward `math`."""

from pydantic import Field

from rlcore.config.parts import RewardConfig


class MathConfig(RewardConfig):
    r"""Settings of `math`."""

    boxed: bool = Field(False, description=r"only an answer in \boxed{} counts")
    decimals: int = Field(6, ge=0, le=15, description="decimals that two numbers must agree in")
