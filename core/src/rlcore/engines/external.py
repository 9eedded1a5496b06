"""Engines that somebody else started: checked before the run, given weights by disk, never stopped."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.api.dtypes import DTYPE_OF_NAME
from rlcore.api.engine import TOKEN_VARIABLE
from rlcore.api.errors import ConfigError, EngineError
from rlcore.engines.client import EngineClient
from rlcore.engines.client_http import RefusedError
from rlcore_machine.tasks import together

_POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a run needs of an engine: `dtype` "fp32" or "bf16"; tokens of prompt and response together."""

    model_type: str
    dtype: str
    context_length: int


def token() -> str | None:
    """The servers' token, if they have one."""
    return os.environ.get(TOKEN_VARIABLE) or None


Asks = Callable[..., EngineClient]
"""Makes the client for a URL, like `rlcore.Engine.client`."""


def check_all(urls: Sequence[str], wanted: Wanted, client: Asks, *, limit_s: float) -> None:
    """`ConfigError` where a server does not answer within `limit_s`, or serves what the run can't use."""

    async def check(url: str) -> None:
        async with client(url, token(), control_timeout_s=limit_s) as asking:
            try:
                await asking.health()
                info, model = await asking.server_info(), await asking.model_info()
            except EngineError as error:
                if isinstance(error, RefusedError) and error.status == 401:
                    wrong = f"the server refused the token, expected its own in {TOKEN_VARIABLE}"
                    raise ConfigError(f"--engine-url {url}: {wrong}.") from error
                raise ConfigError(f"--engine-url {url}: {error}") from error
        for name, found, expected in _differences(info, model, wanted):
            raise ConfigError(f"--engine-url {url}: its {name} is {found}, and the run needs {expected}.")

    asyncio.run(together(map(check, urls)))


def _differences(
    info: Mapping[str, Any], model: Mapping[str, Any], wanted: Wanted
) -> Iterator[tuple[str, object, object]]:
    """Settings that differ from what the run needs, as far as the server tells: name, found, wanted."""
    served, length = info.get("dtype"), info.get("context_length")
    dtype = DTYPE_OF_NAME.get(str(served), served)
    if model.get("model_type") not in (None, wanted.model_type):
        yield "model type", model["model_type"], wanted.model_type
    if dtype not in (None, "auto", wanted.dtype):
        yield "dtype", dtype, wanted.dtype
    if length is not None and length < wanted.context_length:
        yield "context length", length, wanted.context_length


class ExternalLauncher:
    """A launcher for a server that somebody else runs: waits for it, and never starts or stops it."""

    def __init__(self, client: EngineClient, *, limit_s: float) -> None:
        """`limit_s`: how long to wait for a lost server to come back."""
        self._client = client
        self._limit_s = limit_s

    async def start(self) -> EngineClient:
        """Waits until the server answers; EngineError after the limit."""
        deadline = time.monotonic() + self._limit_s
        while True:
            left = deadline - time.monotonic()
            try:
                await self._client.ping(timeout_s=max(left, _POLL_S))
                return self._client
            except EngineError:
                if left <= _POLL_S:
                    raise
            await asyncio.sleep(_POLL_S)

    async def died(self) -> str:
        """Never returns: only health checks tell."""
        return str(await asyncio.Event().wait())

    async def stop(self) -> None:
        """Does nothing: the server belongs to somebody else."""
        await self._client.close()
