"""The reward `reward_model`: a sequence classifier says the score."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import AutoTokenizer  # noqa: F401 - its seconds are spent once, before workers are forked

from rlcore import (
    Json,
    ModelError,
    Sample,
    Score,
    Tokenizer,
    answer_of,
    chat_text,
    load_tokenizer,
    text_ids,
)
from rlcore_remote.client import Client, ServerError, number, token
from rlcore_remote.config import RewardModelConfig
from rlcore_remote.judge import as_text


class RewardModel:
    """The model's score of the prompt with the response, without its thoughts, as the answer to it.

    One request a group, by SGLang's `<url>/classify`: the tokens that the model's own tokenizer and chat
    template give, or the text of `template`. A failure leaves the whole group without scores.
    """

    def __init__(self, config: RewardModelConfig) -> None:
        self._config = config
        self._client = Client(config, "/classify")
        self._tokenizer = None if config.template else _tokenizer(config)

    @classmethod
    def check(cls, config: RewardModelConfig) -> None:
        """Raises `UserError` where the token or the tokenizer is not there."""
        token(config)
        if config.tokenizer:
            _tokenizer(config)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score for each sample. Raises `ServerError`."""
        [answers] = self._client.ask([self._request(samples)])
        if not isinstance(answers, list) or len(answers) != len(samples):
            raise ServerError(f"the server answered no list of {len(samples)} scores: {str(answers)[:200]}")
        return [Score(value=self._read(answer)) for answer in answers]

    def _request(self, samples: Sequence[Sample]) -> dict[str, Json]:
        if self._tokenizer is not None:
            return {"input_ids": [_ids(self._tokenizer, sample) for sample in samples]}
        fill = self._config.template.format
        filled = [fill(prompt=as_text(sample.prompt.text), response=answer_of(sample)) for sample in samples]
        return {"text": filled}

    def _read(self, answer: Any) -> float:
        scores = answer.get("embedding") if isinstance(answer, Mapping) else None
        if not isinstance(scores, list):
            raise ServerError(f"the server answered no scores: {str(answer)[:200]}")
        label = self._config.label
        if label is None and len(scores) != 1:
            raise ServerError(f"the model gives {len(scores)} scores; label must say which of them counts")
        if label is not None and label >= len(scores):
            raise ServerError(f"label is {label}, but the model gives {len(scores)} scores")
        score = number(scores[label or 0])
        return (1 + math.tanh(score / 2)) / 2 if self._config.sigmoid else score


def _tokenizer(config: RewardModelConfig) -> Tokenizer:
    """With a chat template. Raises `ModelError`."""
    tokenizer = load_tokenizer(config.tokenizer)
    if getattr(tokenizer, "chat_template", None) is None:
        raise ModelError(f"{config.tokenizer}: the tokenizer has no chat template; give a template instead.")
    return tokenizer


def _ids(tokenizer: Tokenizer, sample: Sample) -> list[int]:
    prompt = sample.prompt
    asked = [{"role": "user", "content": prompt.text}] if isinstance(prompt.text, str) else prompt.text
    chat = [*asked, {"role": "assistant", "content": answer_of(sample)}]
    return list(text_ids(tokenizer, chat_text(tokenizer, chat, prompt.tools, None, generation=False)))
