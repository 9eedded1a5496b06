"""Both producers keep what rlcore promises of producers."""

from typing import ClassVar

from rlcore import Json, Part
from rlcore_sampling.config import AsynchronousConfig, SynchronousConfig
from rlcore_testing.producers import ProducerConformance


class TestSynchronous(ProducerConformance):
    part = Part(
        name="synchronous",
        factory="rlcore_sampling.producers:synchronous_producer",
        config=SynchronousConfig(),
    )


class TestAsynchronous(ProducerConformance):
    part = Part(
        name="asynchronous",
        factory="rlcore_sampling.producers:asynchronous_producer",
        config=AsynchronousConfig(),
    )


class TestPartialRollouts(TestAsynchronous):
    settings: ClassVar[dict[str, Json]] = {"partial_rollouts": True, "over_sample": 1.5}
