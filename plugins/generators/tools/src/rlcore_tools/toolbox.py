"""Tools by their names, and what becomes of a call."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from rlcore import ConfigError, Json, did_you_mean
from rlcore_toolkit import ToolCall

_log = logging.getLogger(__name__)


class Fault(StrEnum):
    """What was wrong with a call: the model's doing, the tool's, or its time."""

    BAD = "bad_call"
    FAILED = "tool_failed"
    TIMED_OUT = "tool_timed_out"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the model is told."""

    text: str
    fault: Fault | None = None


class BadCallError(Exception):
    """A call that cannot be made; the message is for the model."""


class Tool(Protocol):
    """Something that the model may call."""

    @property
    def name(self) -> str:
        """The name that the model calls it by."""

    @property
    def schema(self) -> Mapping[str, Json]:
        """The form that chat templates take: `{"type": "function", "function": {…}}`."""

    async def call(self, arguments: Mapping[str, Json]) -> str:
        """The result. Raises `BadCallError` for arguments that it does not take."""


def schema_of(name: str, description: str, parameters: Json) -> Mapping[str, Json]:
    """The schema of a tool. `parameters`: the JSON schema of its arguments."""
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


class Toolbox:
    """Calls tools by name, each within `timeout` seconds; a result is at most `most` characters."""

    def __init__(self, tools: Iterable[Tool], *, timeout: float, most: int) -> None:
        """Raises `ConfigError` where two tools have one name."""
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ConfigError(f"--generator: two tools have the name {tool.name!r}; leave one out.")
            self._tools[tool.name] = tool
        self._timeout = timeout
        self._most = most
        self._logged: set[str] = set()

    @property
    def schemas(self) -> list[Mapping[str, Json]]:
        """The schemas of all tools, in their order."""
        return [tool.schema for tool in self._tools.values()]

    async def call(self, call: ToolCall) -> Result:
        """What the tool says, or what is wrong with the call: never an exception."""
        tool = self._tools.get(call.name)
        if tool is None:
            near = did_you_mean(call.name, self._tools)
            said = f"no tool {call.name!r}, expected one of {', '.join(self._tools)}.{near}"
            return failure(Fault.BAD, said)
        try:
            async with asyncio.timeout(self._timeout):
                text = await tool.call(call.arguments)
        except BadCallError as error:
            return failure(Fault.BAD, str(error))
        except TimeoutError:
            self._report(f"{call.name} took longer than {self._timeout:g} s")
            return failure(Fault.TIMED_OUT, f"{call.name} took longer than {self._timeout:g} s")
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            self._report(f"{call.name} raised {said}")
            return failure(Fault.FAILED, said)
        return Result(text=text if len(text) <= self._most else f"{text[: self._most]}… (cut)")

    def _report(self, said: str) -> None:
        if said not in self._logged and len(self._logged) < 100:
            self._logged.add(said)
            _log.warning("The tool %s.", said)


def failure(fault: Fault, said: str) -> Result:
    """An error result."""
    return Result(text=f"Error: {said}", fault=fault)
