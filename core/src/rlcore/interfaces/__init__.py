"""The typed seams: what each kind of plugin implements.

A component is made by calling its factory with its config. Every interface is a `Protocol`: a plugin imports
nothing from rlcore but types. What is told of events (`Tracker`, `Callback`) derives from a base class
instead, whose methods do nothing: a plugin overrides those that it wants.
"""

from rlcore.data.sources import (
    Cursor,
    DrawingSource,
    FileBackedSource,
    PairSource,
    Prompts,
    PromptSource,
    ResponseSource,
)
from rlcore.interfaces.generation import (
    CheckingGenerator,
    ClosableGenerator,
    Completion,
    GenerationContext,
    Generator,
    GroupGenerator,
)
from rlcore.interfaces.scoring import (
    CheckedReward,
    Filter,
    Reward,
    Verdict,
)
from rlcore.interfaces.steering import Callback, RunControl
from rlcore.interfaces.training import (
    AdvantageEstimator,
    AdvantageOutput,
    Correction,
    CorrectionInputs,
    Loss,
    LossInputs,
    LossOutput,
    ValueInputs,
    ValueLoss,
    Weights,
)
from rlcore.interfaces.watching import RunInfo, Tracker

__all__ = [
    "AdvantageEstimator",
    "AdvantageOutput",
    "Callback",
    "CheckedReward",
    "CheckingGenerator",
    "ClosableGenerator",
    "Completion",
    "Correction",
    "CorrectionInputs",
    "Cursor",
    "DrawingSource",
    "FileBackedSource",
    "Filter",
    "GenerationContext",
    "Generator",
    "GroupGenerator",
    "Loss",
    "LossInputs",
    "LossOutput",
    "PairSource",
    "PromptSource",
    "Prompts",
    "ResponseSource",
    "Reward",
    "RunControl",
    "RunInfo",
    "Tracker",
    "ValueInputs",
    "ValueLoss",
    "Verdict",
    "Weights",
]
