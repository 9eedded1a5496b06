"""The hook keeps what rlcore promises of model hooks, and freezes what it says."""

import pytest
from rlcore import ConfigError, ModelView, Part
from rlcore_testing.model_hooks import ModelHookConformance
from torch import nn

from rlcore_my_plugin.config import MyPluginConfig
from rlcore_my_plugin.hook import MyPlugin


class TestMyPlugin(ModelHookConformance):
    part = Part(
        name="my_plugin",
        factory="rlcore_my_plugin.hook:MyPlugin",
        config=MyPluginConfig(),
    )


def view() -> ModelView:
    model = nn.ModuleDict({"embed": nn.Embedding(3, 2), "head": nn.Linear(2, 3)})
    parameters = dict(model.named_parameters())
    return ModelView(modules=[model], parameters=parameters, names=frozenset(parameters))


def test_parameters_with_the_word_are_frozen() -> None:
    model = view()
    MyPlugin(MyPluginConfig()).built(model)
    trained = {name for name, parameter in model.parameters.items() if parameter.requires_grad}
    assert trained == {"head.weight", "head.bias"}


def test_a_word_that_is_nowhere_is_refused() -> None:
    with pytest.raises(ConfigError, match="found 'attention', which is in the name of no parameter"):
        MyPlugin(MyPluginConfig(word="attention")).built(view())
