"""The conformance suite, of the trainer over transformers."""

from rlcore import Part
from rlcore_fsdp.config import FsdpConfig
from rlcore_testing.trainers import TrainerConformance


class TestFsdp(TrainerConformance):
    def trainer(self) -> Part:
        return Part(name="fsdp", factory="rlcore_fsdp.trainer:FsdpTrainer", config=FsdpConfig())
