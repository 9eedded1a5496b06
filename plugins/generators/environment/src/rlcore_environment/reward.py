"""The environment's own rewards."""

from collections.abc import Sequence

from rlcore import Sample, Score
from rlcore_environment.config import EnvironmentRewardConfig
from rlcore_environment.protocol import TURNS


class EnvironmentReward:
    """Their sum; with `credit` "turn" each also stands on the last token of its turn."""

    def __init__(self, config: EnvironmentRewardConfig) -> None:
        self._by_turn = config.credit == "turn"

    def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """Raises `ValueError` for a sample of another generator."""
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> Score:
        turns = sample.metadata.get(TURNS)
        if turns is None:
            raise ValueError("the sample knows no environment: expected --generator environment")
        value = sum(reward for _, reward in turns)
        if not self._by_turn:
            return Score(value=value)
        per_token = [0.0] * len(sample.response_ids)
        for place, reward in turns:
            per_token[place] += reward
        return Score(value=value, per_token=tuple(per_token))
