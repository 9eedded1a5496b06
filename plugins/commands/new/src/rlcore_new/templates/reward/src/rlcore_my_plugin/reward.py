"""The reward `my_plugin`."""

from collections.abc import Sequence

from rlcore import Sample, Score

from rlcore_my_plugin.config import MyPluginConfig


class MyPlugin:
    """Pays for short answers."""

    def __init__(self, config: MyPluginConfig) -> None:
        self._target = config.target

    def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """One score for each sample, in order."""
        return [Score(value=max(0.0, 1 - len(s.response_ids) / self._target)) for s in samples]
