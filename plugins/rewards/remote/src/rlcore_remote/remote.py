"""The reward `remote`: a server says the score."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlcore import Json, Sample, Score
from rlcore_remote.client import Client, ServerError, number, token
from rlcore_remote.config import RemoteConfig


class Remote:
    """What the server answers to prompt, response, label, metadata and status, one request a sample.

    An answer is a number, or an object with a number under `score_key` and perhaps numbers by name under
    `parts_key`. A request that fails for good leaves the whole group without scores.
    """

    def __init__(self, config: RemoteConfig) -> None:
        self._config = config
        self._client = Client(config, concurrency=config.concurrency)

    @classmethod
    def check(cls, config: RemoteConfig) -> None:
        """Raises `ConfigError` where the token is not there."""
        token(config)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample. Raises `ServerError`."""
        return [self._read(answer) for answer in self._client.ask([_request(sample) for sample in samples])]

    def _read(self, answer: Any) -> Score:
        if not isinstance(answer, Mapping):
            return Score(value=number(answer))
        parts = answer.get(self._config.parts_key) or {}
        if not isinstance(parts, Mapping):
            raise ServerError(
                f"the server's {self._config.parts_key!r} is {parts!r}, expected numbers by name"
            )
        value = number(answer.get(self._config.score_key))
        return Score(value=value, parts={str(name): number(part) for name, part in parts.items()})


def _request(sample: Sample) -> dict[str, Json]:
    prompt = sample.prompt
    return {
        "prompt": prompt.text if isinstance(prompt.text, str) else list(prompt.text),
        "response": sample.text,
        "label": prompt.label,
        "metadata": dict(prompt.metadata),
        "status": sample.status.value,
    }
