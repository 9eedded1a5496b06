"""What this package offers."""

from collections.abc import Iterable

from rlcore import RewardAdapter, hookimpl
from rlcore_functions.parameters import GROUP_PARAMETERS, SAMPLE_PARAMETERS, SLIME


@hookimpl
def rlcore_reward_adapters() -> Iterable[RewardAdapter]:
    """Adapters of functions with a parameter that this package knows, and of slime's, which have settings."""
    yield RewardAdapter(
        parameters=tuple(frozenset({name}) for name in (*SAMPLE_PARAMETERS, *GROUP_PARAMETERS)),
        factory_of="rlcore_functions.reward:factory_of",
        expected="a function with a parameter such as response, sample or completions",
    )
    yield RewardAdapter(
        parameters=SLIME,
        factory_of="rlcore_functions.reward:factory_of",
        config="rlcore_functions.config:SlimeConfig",
    )
