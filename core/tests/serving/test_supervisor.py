"""An engine of several nodes: a server process for each, and the end of any is told."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlcore import EngineConfig, EngineError, EngineLaunch, Part, ServerCommand
from rlcore.engines.client import EngineClient
from rlcore.engines.engine import Engine
from rlcore.serving.servers import EngineSupervisor, ServerLauncher
from rlcore_testing.engine_server import TOKEN, launch_of
from rlcore_toolkit import call_in_thread

LIMIT_S = 120.0
SERVER = """
import http.server, pathlib, sys, time
node, host, port, folder, meeting = sys.argv[1:]
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
pathlib.Path(folder, "meeting-" + node).write_text(meeting)
if node == "0":
    while not pathlib.Path(folder, "meeting-1").exists() or pathlib.Path(folder, "alone").exists():
        time.sleep(0.05)
    http.server.HTTPServer((host, int(port)), Healthy).serve_forever()
while not pathlib.Path(folder, "full").exists():
    time.sleep(0.05)
sys.exit("node 1 is out of memory")
"""
"""Node 0 answers when the other has come, and never where it is `alone`; node 1 ends when it is `full`."""


class Script(Engine):
    """An engine whose servers are `SERVER`."""

    name = "script"

    def command(self, launch: EngineLaunch) -> ServerCommand:
        given = (launch.node, launch.host, launch.port, launch.weights_dir, launch.meeting)
        return ServerCommand(argv=(sys.executable, "-S", "-c", SERVER, *map(str, given)), env={})


class Actor:
    """A supervisor in this process, called as others are."""

    def __init__(self) -> None:
        self.supervisor = EngineSupervisor(())

    def call(self, method: str, *arguments: Any, thread: str | None = None) -> Awaitable[Any]:
        return call_in_thread(lambda: getattr(self.supervisor, method)(*arguments))

    def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
        raise NotImplementedError

    def kill(self) -> None:
        self.supervisor.stop()


@pytest.fixture
async def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServerLauncher]:
    """Of an engine of two nodes."""
    monkeypatch.setitem(sys.modules, "script_engine", SimpleNamespace(Script=Script))
    first = launch_of(tmp_path, tmp_path)
    made = ServerLauncher(
        "Engine 0",
        lambda: [Actor(), Actor()],
        Part(name="script", factory="script_engine:Script", config=EngineConfig(stop_grace_s=1.0)),
        [first, replace(first, node=1, log_path=str(tmp_path / "node-1.log"))],
        lambda url: EngineClient(url, TOKEN),
        meeting_host="127.0.0.1",
        silent_s=30.0,
    )
    yield made
    await made.stop()


async def test_nodes_meet_at_the_first(launcher: ServerLauncher, tmp_path: Path) -> None:
    async with await launcher.start() as client:
        assert client.url.startswith("http://127.0.0.1:")
        meetings = {(tmp_path / f"meeting-{node}").read_text() for node in (0, 1)}
        (meeting,) = meetings
        assert meeting.startswith("127.0.0.1:")
        died = asyncio.ensure_future(launcher.died())
        (tmp_path / "full").touch()
        async with asyncio.timeout(LIMIT_S):
            assert (await died).endswith("node 1 is out of memory")


async def test_a_node_that_ends_at_once_is_not_waited_for(launcher: ServerLauncher, tmp_path: Path) -> None:
    for name in ("alone", "full"):
        (tmp_path / name).touch()
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(EngineError, match=r"exit code 1(?s:.*)node 1 is out of memory"):
            await launcher.start()
