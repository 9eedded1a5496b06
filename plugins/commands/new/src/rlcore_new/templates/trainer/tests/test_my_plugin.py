"""The trainer keeps what rlcore promises of trainers, beside transformers' own model."""

from rlcore import Part
from rlcore.testing.trainers import TrainerConformance

from rlcore_my_plugin.config import MyPluginConfig


class TestMyPlugin(TrainerConformance):
    def trainer(self) -> Part:
        factory = "rlcore_my_plugin.trainer:MyPlugin"
        config = MyPluginConfig()
        return Part(name="my_plugin", factory=factory, config=config)
