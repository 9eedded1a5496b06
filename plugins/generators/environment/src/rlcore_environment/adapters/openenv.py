"""Environments of OpenEnv: a server of theirs, asked over its WebSocket."""

import contextlib
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import Field, ValidationError

from rlcore import Config, ConfigError, Json, Sample
from rlcore_environment.protocol import Step

CONNECT_TIMEOUT_S = 10.0
LARGEST_MESSAGE = 100 * 2**20
"""Bytes, as OpenEnv's own client has it."""
NUMBER = {"integer": r"-?\d+", "number": r"-?\d+(?:\.\d+)?"}
"""Type of a field → how it stands in an answer."""


class OpenEnvOptions(Config):
    """`--generator.options` of an OpenEnv server."""

    action: str = Field("", description="field of the action that the answer fills; empty: the only one")
    observation: str = Field(
        "", description="field of the observation that is shown, or a.b; empty: all, as JSON"
    )
    token_env: str = Field("", description="environment variable that holds a bearer token; empty: no token")


@dataclass(frozen=True)
class OpenEnvServer:
    """Where it is, and how an answer becomes an action. `schema`: of `field`; none: the action is JSON."""

    url: str
    headers: Mapping[str, str]
    field: str
    schema: Mapping[str, Any]
    shown: str

    def action(self, text: str) -> dict[str, Any] | None:
        """None where the answer holds no action."""
        if not self.field:
            match = re.search(r"\{.*\}", text, re.DOTALL)
            action = _read(match[0]) if match else None
            return action if isinstance(action, dict) else None
        kind = self.schema.get("type", "string")
        if kind in NUMBER:
            number = re.search(NUMBER[kind], text)
            return {self.field: json.loads(number[0])} if number else None
        value = text.strip() if kind == "string" else _read(text)
        return None if value is None else {self.field: value}

    def observation(self, data: Mapping[str, Any]) -> str:
        """What the policy reads of an answer; "" where that says nothing."""
        value: Any = {name: item for name, item in data["observation"].items() if name != "metadata"}
        for name in filter(None, self.shown.split(".")):
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, str):
            return value
        return "" if value in (None, {}) else json.dumps(value, ensure_ascii=False)


class OpenEnvEnvironment:
    """One session of a server, over a connection of its own.

    A reset gets the row's `metadata["reset"]` (a task, a difficulty) and a seed: the row's
    `metadata["seed"]`, else the sample's. An answer that is no action is told so, and changes nothing.
    """

    def __init__(self, server: OpenEnvServer) -> None:
        """`server`: as `find_server` found it."""
        self._server = server
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def reset(self, sample: Sample) -> str:
        """Connect, and begin."""
        self._http = aiohttp.ClientSession(headers=self._server.headers, trust_env=True)
        self._socket = await self._http.ws_connect(f"{self._server.url}/ws", max_msg_size=LARGEST_MESSAGE)
        metadata = sample.prompt.metadata
        begin = {"seed": metadata.get("seed", sample.seed), **dict(metadata.get("reset") or {})}
        code, data = await self._ask("reset", begin)
        if code:
            raise RuntimeError(_refusal(code, data))
        return self._server.observation(data)

    async def step(self, text: str) -> Step:
        """The answer as an action."""
        action = self._server.action(text)
        if action is None:
            return _invalid("expected " + (self._server.field or "a JSON object"))
        code, data = await self._ask("step", action)
        if code == "VALIDATION_ERROR":
            # what pydantic found on the server's side
            faults = [
                (error.get("loc", ()), error.get("msg", "not valid")) for error in data.get("errors", ())
            ]
            return _invalid("; ".join(f"{'.'.join(map(str, place))}: {fault}" for place, fault in faults))
        if code:
            raise RuntimeError(_refusal(code, data))
        return Step(
            observation=self._server.observation(data),
            reward=float(data.get("reward") or 0.0),
            done=bool(data.get("done")),
        )

    async def close(self) -> None:
        """End the session, and wait until the server has: then it has room for another one."""
        try:
            if self._socket is not None and not self._socket.closed:
                await self._socket.send_json({"type": "close"})
                while (await self._socket.receive()).type is aiohttp.WSMsgType.TEXT:
                    pass  # what it answered to a step that was given up
        finally:
            if self._http is not None:
                await self._http.close()

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """("", the answer's data), or the code of the error and what was said about it."""
        assert self._socket is not None
        with contextlib.suppress(ConnectionError):  # a server without room says so, and hangs up
            await self._socket.send_json({"type": kind, "data": data})
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise RuntimeError("the server ended the connection")
        answer = json.loads(message.data)
        return (str(answer["data"].get("code")) if answer["type"] == "error" else ""), answer["data"]


def find_server(url: str, options: Mapping[str, Json]) -> OpenEnvServer:
    """Asks the server what its actions are. Raises `ConfigError` where that leads to no environment."""
    flag = f"--generator.environment {url}"
    try:
        chosen = OpenEnvOptions.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"--generator.options: {place}: {first['msg']}.") from error
    if not re.match(r"https?://", url):
        raise ConfigError(f"{flag}: expected the URL of an OpenEnv server, such as http://127.0.0.1:8000.")
    url, headers = url.rstrip("/"), _headers(chosen.token_env)
    try:
        request = urllib.request.Request(f"{url}/schema", headers=headers)
        with urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT_S) as answer:
            schema = json.load(answer)
        actions, seen = (schema[which]["properties"] for which in ("action", "observation"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{flag}: no OpenEnv server answers there ({error}).") from error
    field, shown = _fields(actions, seen, chosen)
    return OpenEnvServer(url, headers, field, actions.get(field, {}), shown)


def _fields(actions: Mapping[str, Any], seen: Mapping[str, Any], chosen: OpenEnvOptions) -> tuple[str, str]:
    """The action's field that is filled, and the observation's that is shown."""
    options = (("action", chosen.action, actions), ("observation", chosen.observation, seen))
    for option, name, names in options:
        if name and name.partition(".")[0] not in names:
            offered = ", ".join(sorted({*names} - {"metadata"}))
            raise ConfigError(f"--generator.options: {option}: found {name!r}, expected one of {offered}.")
    fields = [name for name in actions if name != "metadata"]
    return chosen.action or (fields[0] if len(fields) == 1 else ""), chosen.observation


def _headers(token_env: str) -> dict[str, str]:
    if not token_env:
        return {}
    token = os.environ.get(token_env)
    if not token:
        raise ConfigError(f"--generator.options: token_env: the variable {token_env} is not set, or empty.")
    return {"Authorization": f"Bearer {token}"}


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _invalid(said: str) -> Step:
    return Step(observation=f"No action: {said}.", metrics={"invalid_actions": 1.0})


def _refusal(code: str, data: Mapping[str, Any]) -> str:
    said = f"the server says {code}: {data.get('message')}"
    if code == "CAPACITY_REACHED":
        said += f" (--generator.max-environments {data.get('max_sessions')} lets the others wait)"
    return said
