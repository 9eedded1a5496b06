"""The trainer keeps what rlcore promises of trainers, beside transformers' own model."""

from rlcore import Part, Trainer
from rlcore_testing.trainers import TrainerConformance

from rlcore_my_plugin.config import MyPluginConfig
from rlcore_my_plugin.trainer import MyPlugin


class TestMyPlugin(TrainerConformance):
    def trainer(self) -> Part:
        factory = "rlcore_my_plugin.trainer:MyPlugin"
        config = MyPluginConfig()
        return Part(name="my_plugin", factory=factory, config=config)


def test_it_has_no_settings_of_a_library() -> None:
    """By the type, mypy looks at every method."""
    trainer: Trainer = MyPlugin(MyPluginConfig())
    assert trainer.check_fields({}) == {}
