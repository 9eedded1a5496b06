"""The producer keeps what rlcore promises of producers, and hands on what it says."""

from rlcore import Group, Part, Score
from rlcore_testing.producers import ProducerConformance
from rlcore_testing.rewards import sample

from rlcore_my_plugin.config import MyPluginConfig
from rlcore_my_plugin.producer import most_different


class TestMyPlugin(ProducerConformance):
    part = Part(
        name="my_plugin",
        factory="rlcore_my_plugin.producer:MyPlugin",
        config=MyPluginConfig(),
    )


def group(number: int, *rewards: float) -> Group:
    scored = [sample("text", index=i).but(score=Score(value=x)) for i, x in enumerate(rewards)]
    return Group(group_id=number, prompt=scored[0].prompt, samples=tuple(scored))


def test_groups_whose_rewards_differ_most_stay_in_order() -> None:
    groups = [group(0, 0.0, 1.0), group(1, 0.5, 0.5), group(2, -1.0, 1.0), group(3, 0.0, 0.1)]
    assert [one.group_id for one in most_different(groups, 0.5)] == [0, 2]
    assert [one.group_id for one in most_different(groups, 0.6)] == [0, 2, 3]
    assert most_different(groups, 1.0) == groups
