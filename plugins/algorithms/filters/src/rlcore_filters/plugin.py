"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_filters() -> Iterable[Component]:
    """The group filters."""
    yield Component(
        name="overlong",
        factory="rlcore_filters.filters:Overlong",
        summary="mask or drop truncated responses, or lower the reward of long ones",
        config="rlcore_filters.config:OverlongConfig",
    )
    yield Component(
        name="duplicates",
        factory="rlcore_filters.filters:Duplicates",
        summary="drop groups with too few distinct responses",
        config="rlcore_filters.config:DuplicatesConfig",
    )
    yield Component(
        name="staleness",
        factory="rlcore_filters.filters:Staleness",
        summary="mask or drop samples of weights that are too old",
        config="rlcore_filters.config:StalenessConfig",
    )
    yield Component(
        name="prefer",
        factory="rlcore_filters.filters:Prefer",
        summary="train on the newest, the most varied or the most important groups first",
        config="rlcore_filters.config:PreferConfig",
    )
    yield Component(
        name="reward_range",
        factory="rlcore_filters.filters:RewardRange",
        summary="drop groups whose mean reward is too low or too high",
        config="rlcore_filters.config:RewardRangeConfig",
    )
