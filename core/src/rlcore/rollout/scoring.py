"""A teacher that is an engine: its vocabulary is checked, and it scores what the policy sampled."""

import asyncio
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

from rlcore.api.columns import Input
from rlcore.api.errors import ConfigError, DataError, EngineError
from rlcore.api.run_config import RunConfig
from rlcore.api.server_config import frozen_name
from rlcore.api.tokens import CHECKED_AHEAD, Tokenizer
from rlcore.api.types import Group, Prompt, Sample
from rlcore.engines.client import EngineClient
from rlcore_machine.tasks import together

TOKEN = "RLCORE_TEACHER_TOKEN"
"""The environment variable with the bearer token of the teacher's server, which no file may hold."""

TEACHER = "teacher"
"""The key of a prompt's metadata that names its teacher."""

PROBES = 512
"""Tokens whose text is compared, half of them the last ones, where a tokenizer's additions stand."""

_PROBE_TOKENS = 8
"""Tokens whose text makes one probe: the shortest context will do."""


def check_vocabulary(run: RunConfig, tokenizer: Tokenizer) -> None:
    """`ConfigError` where an engine at `--teacher.url` does not answer, or makes other tokens of a text."""
    for flag, url in run.scoring_urls.items():
        try:
            if frozen_name(url) is None:
                asyncio.run(_check(run, f"{flag} {url}", url, tokenizer))
        except EngineError as error:
            raise ConfigError(f"{flag} {url}: {error}") from error


def check_scored(names: Collection[str], prompts: Iterable[Prompt]) -> None:
    """`DataError` where one of the first `CHECKED_AHEAD` prompts has no teacher among `names`."""
    for prompt in islice(prompts, CHECKED_AHEAD) if names else ():
        teacher_of(prompt, names)


def teacher_of(prompt: Prompt, names: Collection[str]) -> str:
    """The teacher of a prompt: what its metadata call so, or else its source, or the one without a name.

    Raises `DataError` where there is none of that name.
    """
    request = prompt.metadata.get(TEACHER)
    source = prompt.prompt_id.partition("/")[0]
    name = request if request is not None else source if source in names else ""
    if not (isinstance(name, str) and name in names):
        found = f"the teacher {request!r}" if request is not None else "no teacher"
        named = ", ".join(sorted(map(repr, filter(None, names))))
        expected = (
            f"one of {named}, which have a --teacher.NAME.url" if named else "none: --teacher.url has no name"
        )
        raise DataError(f"The prompt {prompt.prompt_id!r} has {found} in its metadata; expected {expected}.")
    return name


async def _check(run: RunConfig, at: str, url: str, tokenizer: Tokenizer) -> None:
    async with client_of(run, url) as client:
        texts = _probes(tokenizer)
        token_ids = await together(client.tokenize(text) for text in texts)
    for text, theirs in zip(texts, token_ids, strict=True):
        # With special tokens, as a server adds them to a text.
        mine = tuple(tokenizer.encode(text, add_special_tokens=True))
        if theirs != mine:
            raise ConfigError(
                f"{at}: its tokenizer makes {list(theirs)} of {text!r}, "
                f"that of the run's model {list(mine)}; expected a teacher with the same vocabulary."
            )


def _probes(tokenizer: Tokenizer) -> list[str]:
    size = len(tokenizer)
    tail = range(max(0, size - PROBES // 2), size)
    ids = sorted({*range(0, size, max(1, 2 * size // PROBES)), *tail})
    pieces = [ids[start : start + _PROBE_TOKENS] for start in range(0, len(ids), _PROBE_TOKENS)]
    texts = [tokenizer.decode(piece, skip_special_tokens=False) for piece in pieces]
    return [text for text in texts if text]


def client_of(run: RunConfig, url: str) -> EngineClient:
    """A client for the teacher's server at `url`."""
    return EngineClient(
        url,
        os.environ.get(TOKEN) or None,
        timeout_s=run.serving.engine_timeout,
        concurrency=run.serving.engine_concurrency,
    )


class TokenScorer(Protocol):
    """A teacher, as it is asked."""

    async def score(self, token_ids: Sequence[int], *, start: int) -> Sequence[float]:
        """The log-probs that `EngineClient.score` gives."""


class ScoringEngines:
    """Scores whole groups, each by the teacher of its prompt (`teacher_of`)."""

    def __init__(self, engines: Mapping[str, TokenScorer]) -> None:
        """`engines`: by the names of the teachers; that of a single one is empty."""
        self._engines = engines

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
            engine = self._engines[teacher_of(sample.prompt, self._engines)]
            scores = await engine.score(ids, start=len(sample.prompt_ids))
        return replace(sample, extras={**sample.extras, Input.TEACHER_LOG_PROBS.value: scores})
