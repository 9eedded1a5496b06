"""The task keeps what rlcore promises of sources, and asks what it says."""

from rlcore import Part, PromptSource
from rlcore_testing.sources import SourceConformance

from rlcore_my_plugin.config import MyPluginConfig
from rlcore_my_plugin.source import MyPlugin


class TestMyPlugin(SourceConformance):
    part = Part(
        name="my_plugin",
        factory="rlcore_my_plugin.source:MyPlugin",
        config=MyPluginConfig(),
    )


def test_each_number_is_asked_once_in_one_of_the_sets() -> None:
    source: PromptSource = MyPlugin(MyPluginConfig(digits=2))
    prompts = source.prompts()
    train = {str(prompt.text): prompt.label for prompt in prompts.train}
    held_out = {str(prompt.text): prompt.label for prompt in prompts.held_out["my_plugin"]}
    assert len({**train, **held_out}) == len(train) + len(held_out) == 100
    assert 0 < len(held_out) < 30
    assert {**train, **held_out}["73="] == "7"


def test_the_right_answer_is_known() -> None:
    prompts = MyPlugin(MyPluginConfig(digits=2)).with_responses()
    assert all(prompt.responses == (prompt.label,) for prompt in prompts.train)
