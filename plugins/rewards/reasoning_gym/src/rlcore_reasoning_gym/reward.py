"""The reward: a dataset's own verifier."""

import re
from collections.abc import Sequence

from rlcore import Sample, Score
from rlcore_reasoning_gym.config import ReasoningGymRewardConfig
from rlcore_reasoning_gym.entries import entry_of


class ReasoningGymReward:
    """What `score_answer` of the prompt's dataset says, from 0 to 1. Part: `solved`, 1.0 where it says 1."""

    def __init__(self, config: ReasoningGymRewardConfig) -> None:
        self._tagged = re.compile(f"<{config.tag}>(.*?)</{config.tag}>", re.DOTALL) if config.tag else None

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample. `ValueError` for a prompt of another source."""
        dataset, entry = entry_of(samples[0].prompt.metadata)
        values = [float(dataset.score_answer(self._answer(sample.text), entry)) for sample in samples]
        return [Score(value=value, parts={"solved": float(value >= 1)}) for value in values]

    def _answer(self, text: str) -> str:
        tagged = self._tagged.findall(text) if self._tagged else []
        return (tagged[-1] if tagged else text).strip()
