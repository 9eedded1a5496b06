"""Tools of MCP servers, over stdio and HTTP."""

import asyncio
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcore.api.errors import PluginError
from rlcore_toolkit import ToolCall
from rlcore_tools.servers import Server
from rlcore_tools.toolbox import Fault, Result, Toolbox

pytest.importorskip("mcp")
SCRIPT = Path(__file__).with_name("calculator_server.py")
COMMAND = shlex.join([sys.executable, str(SCRIPT)])
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SCRIPT), str(port)], stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


async def opened(server: Server) -> Toolbox:
    """The server's tools, once it is up."""
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while True:
        try:
            return Toolbox(await server.tools(), timeout=LIMIT_S, most=500)
        except PluginError:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.1)


async def ask(where: str, *calls: ToolCall) -> tuple[list[str], list[Result]]:
    server = Server(where, LIMIT_S)
    try:
        box = await opened(server)
        names = [str(schema["function"]["name"]) for schema in box.schemas]
        return names, [await box.call(call) for call in calls]
    finally:
        await server.close()


def check(where: str) -> None:
    names, found = asyncio.run(
        ask(
            where,
            ToolCall(name="multiply", arguments={"a": 6, "b": 7}),
            ToolCall(name="multiply", arguments={"a": "many"}),
            ToolCall(name="divide", arguments={"a": 1, "b": 0}),
        )
    )
    assert names == ["multiply", "divide", "leave", "sleep"]
    assert found[0] == Result(text="42")
    assert [one.fault for one in found[1:]] == [Fault.BAD, Fault.BAD]
    assert "valid integer" in found[1].text


def test_http(url: str) -> None:
    check(url)


def test_stdio() -> None:
    check(COMMAND)


@pytest.mark.full
def test_a_server_that_dies_is_started_anew() -> None:
    leave = ToolCall(name="leave", arguments={})
    multiply = ToolCall(name="multiply", arguments={"a": 2, "b": 2})
    _, found = asyncio.run(ask(COMMAND, leave, multiply))
    assert found[0].fault is Fault.FAILED
    assert found[1] == Result(text="4")


@pytest.mark.full
async def test_a_call_has_a_time_limit_and_leaves_the_server_usable() -> None:
    server = Server(COMMAND, LIMIT_S)
    try:
        tools = await server.tools()
        sleep = ToolCall(name="sleep", arguments={"seconds": 2})
        assert (await Toolbox(tools, timeout=0.3, most=9).call(sleep)).fault is Fault.TIMED_OUT
        call = ToolCall(name="multiply", arguments={"a": 3, "b": 3})
        assert await Toolbox(tools, timeout=LIMIT_S, most=9).call(call) == Result(text="9")
    finally:
        await server.close()


@pytest.mark.full
async def test_a_server_that_starts_slower_than_a_call_may_take_comes_up() -> None:
    slow = shlex.join(["sh", "-c", f"sleep 1; exec {COMMAND}"])
    leave = ToolCall(name="leave", arguments={})
    multiply = ToolCall(name="multiply", arguments={"a": 3, "b": 3})
    server = Server(slow, LIMIT_S)
    try:
        tools = await server.tools()
        patient, hasty = (Toolbox(tools, timeout=limit, most=9) for limit in (LIMIT_S, 0.2))
        await patient.call(leave)
        assert (await hasty.call(multiply)).fault is Fault.TIMED_OUT
        assert await patient.call(multiply) == Result(text="9")
    finally:
        await server.close()


@pytest.mark.parametrize("command", ["python 'unbalanced", " ", "no-such-program"])
def test_what_cannot_be_started_is_told(command: str) -> None:
    with pytest.raises(PluginError, match="the server did not start"):
        asyncio.run(asyncio.wait_for(Server(command, LIMIT_S).tools(), LIMIT_S))


def test_what_does_not_start_in_time_is_told() -> None:
    with pytest.raises(PluginError, match=r"the server did not start \(TimeoutError"):
        asyncio.run(Server("sleep 60", 0.3).tools())


def test_what_does_not_start_is_told() -> None:
    command = shlex.join([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(PluginError, match="the server did not start"):
        asyncio.run(Server(command, LIMIT_S).tools())
