"""The conformance suite, of the megatron trainer."""

from rlcore.api.part import Part
from rlcore_megatron.config import MegatronConfig
from rlcore_testing.trainers import TrainerConformance


class TestMegatron(TrainerConformance):
    def trainer(self) -> Part:
        return Part(
            name="megatron", factory="rlcore_megatron.trainer:MegatronTrainer", config=MegatronConfig()
        )

    def bridge(self) -> Part:
        return Part(name="qwen3", factory="rlcore_qwen.bridge:QwenBridge")
