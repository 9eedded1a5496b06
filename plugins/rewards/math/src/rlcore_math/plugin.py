"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    """The rewards."""
    yield Component(
        name="math",
        factory="rlcore_math.reward:Math",
        summary="1 where the answer is mathematically equal to the label, else 0 (math-verify)",
        config="rlcore_math.config:MathConfig",
        suggests={"reward_timeout": 120.0},
    )
    yield Component(
        name="deepscaler",
        factory="rlcore_math.reward:DeepScaler",
        summary="1 where the boxed answer behind the thoughts is right, else 0 (as slime and DeepScaleR)",
        config="rlcore_math.config:DeepScalerConfig",
        suggests={"reward_timeout": 120.0},
    )
    yield Component(
        name="dapo",
        factory="rlcore_math.reward:Dapo",
        summary="1 or -1 by what follows `Answer:` in the last 300 characters (as slime and DAPO)",
        config="rlcore_math.config:DapoConfig",
        suggests={"reward_timeout": 120.0},
    )
