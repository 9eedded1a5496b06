"""The reward keeps what rlcore promises of rewards."""

from typing import ClassVar

from rlcore import RewardPart
from rlcore_testing.rewards import Case, RewardConformance, sample

from rlcore_my_plugin.config import MyPluginConfig


class TestMyPlugin(RewardConformance):
    part = RewardPart(
        name="my_plugin",
        factory="rlcore_my_plugin.reward:MyPlugin",
        config=MyPluginConfig(target=4),
    )
    cases: ClassVar = (
        Case(sample("one", tokens=1), 0.75),
        Case(sample("two", tokens=2), 0.5),
        Case(sample("too long", tokens=9), 0.0),
    )
