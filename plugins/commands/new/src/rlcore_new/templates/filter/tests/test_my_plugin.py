"""The filter keeps what rlcore promises of filters, and drops what it says."""

from rlcore import Filter, Group, Part
from rlcore_testing.filters import FilterConformance
from rlcore_testing.rewards import sample

from rlcore_my_plugin.config import MyPluginConfig
from rlcore_my_plugin.filter import MyPlugin


class TestMyPlugin(FilterConformance):
    part = Part(
        name="my_plugin",
        factory="rlcore_my_plugin.filter:MyPlugin",
        config=MyPluginConfig(tokens=3),
    )


def group(*tokens: int) -> Group:
    samples = tuple(sample("text", index=i, tokens=length) for i, length in enumerate(tokens))
    return Group(group_id=0, prompt=samples[0].prompt, samples=samples)


def test_a_group_of_short_answers_is_dropped() -> None:
    short_or_long: Filter = MyPlugin(MyPluginConfig(tokens=3))
    kept = group(1, 5)
    assert short_or_long.judge(kept).group is kept
    dropped = short_or_long.judge(group(1, 4))
    assert dropped.group is None
    assert dropped.reason == "too_short"
