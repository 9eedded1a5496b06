"""The reward: a dataset's own verifier."""

import re
from collections.abc import Iterable, Sequence

from rlcore import Prompt, Sample, Score, answer_of
from rlcore_reasoning_gym.config import ReasoningGymRewardConfig
from rlcore_reasoning_gym.entries import entry_of, place_of
from rlcore_toolkit import complaints_of


class ReasoningGymReward:
    """What `score_answer` of the prompt's dataset says, from 0 to 1. Part: `solved`, 1.0 where it says 1."""

    def __init__(self, config: ReasoningGymRewardConfig) -> None:
        self._tagged = re.compile(f"<{config.tag}>(.*?)</{config.tag}>", re.DOTALL) if config.tag else None

    @classmethod
    def prompt_complaints(cls, config: ReasoningGymRewardConfig, prompts: Sequence[Prompt]) -> Iterable[str]:
        """Prompts of another source."""
        return complaints_of(lambda prompt: place_of(prompt.metadata), prompts)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample. `ValueError` for a prompt of another source."""
        dataset, entry = entry_of(samples[0].prompt.metadata)
        values = [float(dataset.score_answer(self._answer(answer_of(sample)), entry)) for sample in samples]
        return [Score(value=value, parts={"solved": float(value >= 1)}) for value in values]

    def _answer(self, text: str) -> str:
        tagged = self._tagged.findall(text) if self._tagged else []
        return (tagged[-1] if tagged else text).strip()
