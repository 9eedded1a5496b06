"""A teacher that is an engine: its vocabulary is checked, and it scores what the policy sampled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from rlcore.api.errors import ConfigError, EngineError
from rlcore.api.inputs import Input
from rlcore.api.run_config import RunConfig
from rlcore.api.tokens import Tokenizer
from rlcore.api.types import Group, Sample
from rlcore.engines.client import EngineClient, together

TOKEN = "RLCORE_TEACHER_TOKEN"
"""The environment variable with the bearer token of the teacher's server, which no file may hold."""

PROBES = 512
"""Tokens whose text is compared, half of them the last ones, where a tokenizer's additions stand."""

_PROBE_TOKENS = 8
"""Tokens whose text makes one probe: the shortest context will do."""


def check_vocabulary(run: RunConfig, tokenizer: Tokenizer) -> None:
    """`ConfigError` where the engine at `--teacher-url` does not answer, or makes other tokens of a text."""
    try:
        asyncio.run(_check(run, tokenizer))
    except EngineError as error:
        raise ConfigError(f"--teacher-url {run.teacher.teacher_url}: {error}") from error


async def _check(run: RunConfig, tokenizer: Tokenizer) -> None:
    async with client_of(run) as client:
        texts = _probes(tokenizer)
        token_ids = await together(client.tokenize(text) for text in texts)
    for text, theirs in zip(texts, token_ids, strict=True):
        mine = tuple(tokenizer.encode(text, add_special_tokens=True))
        if theirs != mine:
            raise ConfigError(
                f"--teacher-url {run.teacher.teacher_url}: its tokenizer makes {list(theirs)} of {text!r}, "
                f"that of the run's model {list(mine)}; expected a teacher with the same vocabulary."
            )


def _probes(tokenizer: Tokenizer) -> list[str]:
    size = len(tokenizer)
    tail = range(max(0, size - PROBES // 2), size)
    ids = sorted({*range(0, size, max(1, 2 * size // PROBES)), *tail})
    pieces = [ids[start : start + _PROBE_TOKENS] for start in range(0, len(ids), _PROBE_TOKENS)]
    texts = [tokenizer.decode(piece, skip_special_tokens=False) for piece in pieces]
    return [text for text in texts if text]


def client_of(run: RunConfig) -> EngineClient:
    """Of the server at `--teacher-url`."""
    return EngineClient(
        run.teacher.teacher_url,
        os.environ.get(TOKEN) or None,
        timeout_s=run.serving.engine_timeout,
        concurrency=run.serving.engine_concurrency,
    )


class TokenScorer(Protocol):
    """What a teacher is asked."""

    async def score(self, token_ids: Sequence[int], *, start: int) -> Sequence[float]:
        """As `EngineClient.score`."""
        ...


class TeacherEngine:
    """Scores whole groups."""

    def __init__(self, engine: TokenScorer) -> None:
        self._engine = engine

    async def score(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with `Input.TEACHER_LOG_PROBS` among the extras of each sample, at temperature 1.

        Raises `EngineError` where the teacher gives none.
        """
        samples = await together(self._scored(sample) for group in groups for sample in group.samples)
        left = iter(samples)
        return [replace(group, samples=tuple(next(left) for _ in group.samples)) for group in groups]

    async def _scored(self, sample: Sample) -> Sample:
        ids = (*sample.prompt_ids, *sample.response_ids)
        scores: Sequence[float] = ()
        if sample.response_ids:
            scores = await self._engine.score(ids, start=len(sample.prompt_ids))
        return replace(sample, extras={**sample.extras, Input.TEACHER_LOG_PROBS.value: scores})
