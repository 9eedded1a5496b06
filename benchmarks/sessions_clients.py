"""The agents of `sessions.py`, all in one process: they use a tool after every answer, and tools take time.

As a program it reads a line of JSON on stdin, `{"agents": [{"url", "key"}, …], "turns", …}`, and writes one
on stdout: for each agent the seconds of its turns, and how many tool calls it saw. As a
module it has the agent that the generator `session` calls, `hand_over`, which leaves the work to it.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from rlcore_session.agents import AgentSession

LIMIT_S = 500.0
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
        },
    }
]


class Connection:
    """HTTP/1.1 on one connection, as lean as it gets: what is measured is the server, not this side."""

    def __init__(self, where: Mapping[str, Any]) -> None:
        self._url, self._key = urlsplit(where["url"]), where["key"]
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Any) -> Any:
        """The JSON that the server answers. Raises `RuntimeError` for any status but 200."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._url.hostname, self._url.port)
        reader, writer = self._streams
        content = json.dumps(body).encode()
        head = (
            f"POST {self._url.path}{path} HTTP/1.1",
            f"Host: {self._url.netloc}",
            f"Authorization: Bearer {self._key}",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
        )
        writer.write("\r\n".join((*head, "", "")).encode() + content)
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next(line for line in lines if line.startswith("content-length:"))
        answer = await reader.readexactly(int(length.partition(":")[2]))
        if " 200 " not in status:
            raise RuntimeError(f"{status}: {answer.decode()}")
        return json.loads(answer)

    async def close(self) -> None:
        """Ends the connection."""
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()


async def agent(number: int, where: Mapping[str, Any], task: Mapping[str, Any]) -> Any:
    """One session: `turns` answers, and a tool after each but the last."""
    dice = random.Random(number)
    messages: list[Any] = [{"role": "user", "content": f"look at {number}"}]
    seconds, calls = [], 0
    connection = Connection(where)
    for turn in range(task["turns"]):
        if turn:
            wait = task["longest"] - task["shortest"]
            await asyncio.sleep(task["shortest"] + wait * dice.random() ** task["tail"])
        asked = time.perf_counter()
        body = {"model": "policy", "messages": messages, "tools": TOOLS, "max_tokens": task["max_tokens"]}
        answer = await connection.post("/chat/completions", body)
        seconds.append(time.perf_counter() - asked)
        said = answer["choices"][0]["message"]
        calls += bool(said.get("tool_calls"))
        messages.append(said)
        for call in said.get("tool_calls") or ():
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"nothing {turn}"})
        if not said.get("tool_calls"):
            messages.append({"role": "user", "content": "look again"})
    await connection.close()
    return {"turns": seconds, "calls": calls}


async def main() -> None:
    """All agents at once."""
    task = json.loads(sys.stdin.readline())
    agents = (agent(number, where, task) for number, where in enumerate(task["agents"]))
    found = await asyncio.wait_for(asyncio.gather(*agents), LIMIT_S)
    print(json.dumps(found), flush=True)


class Pool:
    """Hands all sessions of a measurement over to the program, once the last one is there."""

    def __init__(self) -> None:
        self.cpu = 0.0
        """Seconds of CPU that this process took while the agents worked."""

    def begin(self, sessions: int, task: Mapping[str, Any]) -> None:
        """A measurement, in the running loop."""
        self._sessions: list[AgentSession] = []
        self._awaited, self._task = sessions, task
        self._found: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    @property
    def found(self) -> list[Any]:
        """What the agents saw."""
        return self._found.result()

    async def work(self, session: AgentSession) -> None:
        """One session: it is over when all are."""
        self._sessions.append(session)
        if len(self._sessions) == self._awaited:
            try:
                self._found.set_result(await self._run())
            except BaseException as error:
                self._found.set_exception(error)
        await asyncio.shield(self._found)

    async def _run(self) -> list[Any]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        agents = [{"url": one.openai_url, "key": one.api_key} for one in self._sessions]
        task, begin = json.dumps({**self._task, "agents": agents}), time.process_time()
        out, _ = await process.communicate(task.encode() + b"\n")
        self.cpu = time.process_time() - begin
        if process.returncode:
            raise RuntimeError(f"the agents ended with exit code {process.returncode}")
        found: list[Any] = json.loads(out)
        return found


POOL = Pool()


async def hand_over(session: AgentSession) -> None:
    """The agent of `--generator.agent sessions_clients:hand_over`."""
    await POOL.work(session)


if __name__ == "__main__":
    asyncio.run(main())
