"""The trainer keeps what rlcore promises of trainers, beside transformers' own model."""

from pathlib import Path

from rlcore import Part, Trainer
from rlcore_testing.trainers import TrainerConformance

from rlcore_my_plugin.config import MyPluginConfig
from rlcore_my_plugin.trainer import MyPlugin


class TestMyPlugin(TrainerConformance):
    def trainer(self) -> Part:
        factory = "rlcore_my_plugin.trainer:MyPlugin"
        config = MyPluginConfig()
        return Part(name="my_plugin", factory=factory, config=config)


def test_directories_are_read_as_they_are(tmp_path: Path) -> None:
    """By the type, mypy looks at every method."""
    trainer: Trainer = MyPlugin(MyPluginConfig())
    assert trainer.weights_in(tmp_path) is None
