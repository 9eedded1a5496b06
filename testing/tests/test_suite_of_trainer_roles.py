"""The suite of trainers names what critics, teachers and several ranks lack: megatron's, with one fault each.

Without a fault it passes: plugins/trainers/megatron/tests/test_trainer_conformance.py.
"""

from pathlib import Path

import pytest
from broken_parts import fails

from rlcore.api.part import Part
from rlcore_megatron.config import MegatronConfig
from rlcore_testing.conformance import Subject
from rlcore_testing.trainers import TrainerConformance

STATE = "a value is that of the state before its token"
SCORES = "the scores are those of transformers"
COMPUTE = "two ranks compute what one does"
PUBLISH = "two ranks publish what one does in one order"
SHARE = "each rank says which share is its own"
SLEEP = "a sleep changes no bit of the others"
LEARNS = "a critic learns and says what it lost"
NEIGHBORS = "a critic and the policy of its worker leave each other alone"
FAULTS = [
    ("ValuesAfter", STATE, "changes with the token that it stands before"),
    ("ValuesTooEarly", STATE, "does not see the token before its own"),
    ("MeanOfTwo", "the gradient of a critic is that of its loss", "by the gradient norm it would be"),
    ("LoadsNothing", "a critic resumes to the last bit", "its values are others"),
    ("OneRate", NEIGHBORS, "learning rates of the two"),
    ("TeacherOfThePolicy", SCORES, "'log_probs': "),
    ("MeanOverRanks", COMPUTE, "norm is"),
    ("TurnedOrder", PUBLISH, "the order is the same on every rank"),
    ("SavesTheStart", "two ranks save what one does", "data-parallel ranks"),
    ("SameDice", "two ranks resume to the last bit", "rank 1: random numbers differs"),
    ("HalfPrecision", STATE, "torch.bfloat16"),
    ("Uphill", LEARNS, "it does not learn"),
    ("Entangled", NEIGHBORS, "the policy moved with the critic"),
    (
        "CountsEveryStep",
        "a step of the critic that is not finite is not taken",
        "it counts for the schedule of the learning rate",
    ),
    ("DoesNotSleep", SLEEP, "lie in the device's memory no more"),
    ("ReferenceIsThePolicy", SCORES, "it moved with the policy"),
    ("OwnTemperature", SCORES, "'log_probs': "),
    ("TeacherDoesNotSleep", SLEEP, "lie in the device's memory no more"),
    ("OwnLoss", COMPUTE, "the ranks say different things"),
    ("FirstRankPublishes", PUBLISH, "the order is the same on every rank"),
    ("OneShare", SHARE, "the numbers of the shares are [0, 0]"),
    ("NoGroup", SHARE, "in `DataRank.group` are the shares [0]"),
]


@pytest.mark.grid
@pytest.mark.parametrize(
    ("fault", "missing", "reason"),
    FAULTS,
    ids=[fault for fault, _, _ in FAULTS],
)
def test_a_trainer_with_a_fault(
    fault: str, missing: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)  # for the ranks
    part = Part(name=fault, factory=f"broken_trainers:{fault}", config=MegatronConfig())
    bridge = Part(name="qwen3", factory="rlcore_qwen.bridge:QwenBridge")
    suite = TrainerConformance.of(Subject(record=None, part=part, bridge=bridge))
    found = fails(suite.with_values(layouts={"data-parallel ranks": {}}), missing)
    assert reason in found[missing]
