"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl
from rlcore_math.config import MathConfig


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    """The reward."""
    yield Component(
        name="math",
        factory="rlcore_math.reward:Math",
        summary="1 where the answer is mathematically equal to the label, else 0 (math-verify)",
        config=MathConfig,
        suggests={"reward_timeout": 120.0},
    )
