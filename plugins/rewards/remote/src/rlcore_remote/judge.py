"""The reward `judge`: a language model says the score."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlcore import Json, Sample, Score
from rlcore_remote.client import Client, ServerError, token
from rlcore_remote.config import JudgeConfig


class Judge:
    """The judge's score between `low` and `high`, as a number from 0 to 1.

    One chat completion a sample, by `<url>/chat/completions`. An answer without a score, or with one outside
    of the range, leaves the whole group without scores.
    """

    def __init__(self, config: JudgeConfig) -> None:
        self._config = config
        self._client = Client(config, "/chat/completions", concurrency=config.concurrency)
        self._pattern = re.compile(config.score_pattern)

    @classmethod
    def check(cls, config: JudgeConfig) -> None:
        """Raises `ConfigError` where the token is not there."""
        token(config)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample. Raises `ServerError`."""
        return list(map(self._read, self._client.ask(list(map(self._request, samples)))))

    def _request(self, sample: Sample) -> dict[str, Json]:
        config, prompt = self._config, sample.prompt
        label = "" if prompt.label is None else str(prompt.label)
        question = config.template.format(prompt=as_text(prompt.text), response=sample.text, label=label)
        system = [{"role": "system", "content": config.system}] if config.system else []
        messages = [*system, {"role": "user", "content": question}]
        options = {"temperature": config.temperature, "max_tokens": config.max_tokens}
        return {"model": config.model or "default", "messages": messages, **options}

    def _read(self, answer: Any) -> Score:
        try:
            said = answer["choices"][0]["message"]["content"] or ""
        except (KeyError, IndexError, TypeError) as error:
            raise ServerError(f"the judge's answer is no chat completion: {str(answer)[:200]}") from error
        scores = self._pattern.findall(said)
        if not scores:
            raise ServerError(f"the judge said no score: {said[-200:]!r}")
        low, high = self._config.low, self._config.high
        try:
            number = float(scores[-1])
        except ValueError as error:
            raise ServerError(f"the judge's score {scores[-1]!r} is no number") from error
        if not low <= number <= high:
            raise ServerError(f"the judge's score is {number:g}, expected {low:g} to {high:g}")
        return Score(value=(number - low) / (high - low))


def as_text(text: str | Sequence[Mapping[str, Json]]) -> str:
    """A prompt; of a chat its messages, one after the other."""
    if isinstance(text, str):
        return text
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in text)
