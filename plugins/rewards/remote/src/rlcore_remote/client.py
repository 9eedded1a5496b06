"""Asks a server about every sample of a group, within limits. No answer is an error, never a score."""

import asyncio
import itertools
import json
import math
import os
import random
import time
from collections.abc import Sequence
from typing import Any, TypeGuard

import aiohttp

from rlcore import AsksServer, ConfigError, Json
from rlcore_remote.config import ServerConfig

MAX_ANSWER_BYTES = 1 << 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be others the next time."""


class ServerError(RuntimeError):
    """A server that gave no usable answer, and why."""


class _PassingError(ServerError):
    """What may go better the next time."""


def token(config: ServerConfig) -> str:
    """The bearer token, or the empty string. Raises `ConfigError` where its variable is not set."""
    if _is_of_the_run(config):
        return config.held_token
    if not config.token_env:
        return ""
    value = os.environ.get(config.token_env, "")
    if not value:
        raise ConfigError(f"token_env: the environment variable {config.token_env!r} is not set, or empty.")
    return value


def _is_of_the_run(config: ServerConfig) -> TypeGuard[AsksServer]:
    """Whether the run serves what is asked, and replaces the server where it is lost."""
    return isinstance(config, AsksServer) and bool(config.held_token)


class Client:
    """Posts JSON. `path` is put behind the config's `url`. `concurrency`: requests at one time."""

    def __init__(self, config: ServerConfig, path: str = "", *, concurrency: int = 1) -> None:
        self._config = config
        self._concurrency = concurrency
        self._url = config.url.rstrip("/") + path if path else config.url
        secret = token(config)
        self._headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._retries = math.inf if _is_of_the_run(config) else config.retries

    def ask(self, bodies: Sequence[Json]) -> list[Any]:
        """The JSON that the server answers to each body, in order. Raises the first `ServerError`.

        Transport errors, time-outs and passing statuses (429, 5xx) are tried again with growing pauses, until
        `retries` or the group's `retry_budget` are used up; of a server of the run, which is replaced where
        it is lost, until the budget is. A redirect is not followed: the token would be.
        """
        try:
            return asyncio.run(self._ask_all(bodies))
        except ExceptionGroup as errors:  # the task group's, which holds those of its tasks
            raise errors.exceptions[0] from None

    async def _ask_all(self, bodies: Sequence[Json]) -> list[Any]:
        deadline = time.monotonic() + self._config.retry_budget
        timeout = aiohttp.ClientTimeout(total=self._config.request_timeout)
        turns = asyncio.Semaphore(self._concurrency)
        async with (
            aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session,
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task(self._ask(session, turns, body, deadline)) for body in bodies]
        return [task.result() for task in tasks]

    async def _ask(
        self, session: aiohttp.ClientSession, turns: asyncio.Semaphore, body: Json, deadline: float
    ) -> Any:
        for attempt in itertools.count():
            try:
                async with turns:
                    return await self._post(session, body)
            except _PassingError as error:
                pause = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S) * random.uniform(0.5, 1)
                last = attempt == self._retries or time.monotonic() + pause > deadline
                if last:
                    raise ServerError(f"{error}, in {attempt + 1} tries") from error
            await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    async def _post(self, session: aiohttp.ClientSession, body: Json) -> Any:
        try:
            async with session.post(self._url, json=body, allow_redirects=False) as response:
                text = await _read(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _PassingError(f"no answer from the server ({type(error).__name__}: {error})") from error
        if response.status in _AGAIN:
            raise _PassingError(f"the server answered {response.status}")
        if response.status != 200:
            raise ServerError(f"the server answered {response.status}: {text[:200]}")
        try:
            return json.loads(text)
        except ValueError as error:
            raise ServerError(f"the server answered no JSON: {text[:200]!r}") from error


def number(value: Any) -> float:
    """A finite number that a server gave. Raises `ServerError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ServerError(f"the server answered {value!r} where a number was expected")
    return float(value)


async def _read(response: aiohttp.ClientResponse) -> str:
    data = await response.content.read(MAX_ANSWER_BYTES + 1)
    while len(data) <= MAX_ANSWER_BYTES and (more := await response.content.read(MAX_ANSWER_BYTES)):
        data += more
    if len(data) > MAX_ANSWER_BYTES:
        raise ServerError(f"the server's answer is longer than {MAX_ANSWER_BYTES} bytes")
    return data.decode("utf-8", "replace")
