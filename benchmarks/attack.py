"""One agent attacks the endpoint of the generator `session`: what the others' turns take meanwhile.

The others, and the attacker, are processes of their own; this one is rlcore's side. The engine answers at
once, so that the time of a turn is the endpoint's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from common import Row, machine, parser, publish, say, table, verdict
from sessions_clients import Connection

OTHERS = 16
"""Agents that do nothing wrong."""
THINKS_S = 0.05
P99_TARGET_MS = 100.0
CONTEXT = 32_768
START_LIMIT_S = 60.0

USER = {"role": "user", "content": "look around"}
Attack = Callable[[Mapping[str, Any]], Awaitable[str]]
"""Says what came of it."""


async def refused(where: Mapping[str, Any], body: Any) -> str:
    """One request, and the status of its answer."""
    connection = Connection(where)
    try:
        await connection.post("/chat/completions", body)
        return "200"
    except RuntimeError as error:
        return str(error).split()[1]
    except (OSError, asyncio.IncompleteReadError):
        return "closed"
    finally:
        with contextlib.suppress(OSError):
            await connection.close()


async def long_chat(where: Mapping[str, Any]) -> str:
    """As many bytes as are taken, which must be tokenised to see that they do not fit."""
    return await refused(where, {"model": "m", "messages": [{**USER, "content": "word " * 600_000}]})


async def many_messages(where: Mapping[str, Any]) -> str:
    """Each of which is looked for among the chats that were sampled."""
    return await refused(where, {"model": "m", "messages": [USER] * 8_000})


async def too_large(where: Mapping[str, Any]) -> str:
    """30 MB, which are refused."""
    return await refused(where, {"model": "m", "messages": [{**USER, "content": "x" * 30_000_000}]})


async def template(where: Mapping[str, Any]) -> str:
    """A chat template with loops in loops."""
    loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
    return await refused(where, {"messages": [USER], "chat_template_kwargs": {"chat_template": loops}})


async def deep(where: Mapping[str, Any]) -> str:
    """JSON in JSON in JSON."""
    tools: Any = []
    for _ in range(900):
        tools = [tools]
    return await refused(
        where, {"messages": [USER], "tools": [{"function": {"name": "f", "parameters": {"x": tools}}}]}
    )


async def connections(where: Mapping[str, Any]) -> str:
    """1,500 connections, half of which announce a body that does not come; they stay as long as they may."""
    url = urlsplit(where["url"])
    head = (
        f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: {url.netloc}\r\n"
        f"Authorization: Bearer {where['key']}\r\nContent-Length: 1000\r\n\r\n"
    )
    for number in range(1500):
        opened = await asyncio.open_connection(url.hostname, url.port)
        OPENED.append(opened)
        if number % 2:
            opened[1].write(head.encode())
    await asyncio.sleep(where["seconds"])
    return "1,500 open"


OPENED: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []


async def nothing(where: Mapping[str, Any]) -> str:
    """No attack."""
    await asyncio.sleep(1)
    return "none"


ATTACKS: dict[str, Attack] = {
    "none": nothing,
    "a chat of 3 MB": long_chat,
    "8,000 messages": many_messages,
    "a body of 30 MB": too_large,
    "a template of its own": template,
    "deep JSON": deep,
    "1,500 connections, silent or without the body that they announce": connections,
}


async def client(task: Mapping[str, Any]) -> None:
    """As a program: attack, or work as the others, for `task["seconds"]`; prints the seconds of the turns."""
    end = time.monotonic() + task["seconds"]
    if "attack" in task:
        came: Counter[str] = Counter()
        while time.monotonic() < end:
            came[await ATTACKS[task["attack"]]({**task["agents"][0], "seconds": task["seconds"]})] += 1
        print(json.dumps(came), flush=True)
        return

    async def work(where: Mapping[str, Any], number: int) -> list[float]:
        connection, found = Connection(where), []
        await asyncio.sleep(THINKS_S * number / OTHERS)
        while time.monotonic() < end:
            asked = time.perf_counter()
            await connection.post("/chat/completions", {"model": "m", "messages": [USER], "max_tokens": 80})
            found.append(time.perf_counter() - asked)
            await asyncio.sleep(THINKS_S)
        await connection.close()
        return found

    turns = await asyncio.gather(*(work(where, number) for number, where in enumerate(task["agents"])))
    print(json.dumps([second for one in turns for second in one]), flush=True)


async def program(task: Mapping[str, Any]) -> Any:
    """What a process with this task prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--client"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    async with asyncio.timeout(task["seconds"] + START_LIMIT_S):
        out, _ = await process.communicate(json.dumps(task).encode())
    return json.loads(out)


async def measure(tokenizer: Any, attack: str, seconds: float) -> Row:
    """The others' turns while one attacks."""
    from sessions import Instant

    from rlcore.api.types import Prompt, Sample, Sampling
    from rlcore.rollout.context import EngineContext
    from rlcore_session.server import SessionServer
    from rlcore_session.session import Session
    from rlcore_testing.token_engine import CountingReward

    server = SessionServer()
    await server.start()
    ctx = EngineContext(
        Instant(tokenizer), tokenizer, Sampling(max_tokens=CONTEXT), CountingReward(), context_length=CONTEXT
    )
    async with contextlib.AsyncExitStack() as stack:
        where = []
        for number in range(OTHERS + 1):
            prompt = Prompt(prompt_id=str(number), text="look")
            sample = Sample(
                prompt=prompt, prompt_ids=(1,), group_id=0, index=number, rollout_id=f"0.{number}"
            )
            session = Session(ctx, sample, max_turns=10**9, how=None)
            stack.callback(session.close)
            key = stack.enter_context(server.open(session, ctx))
            where.append({"url": f"{server.url}/v1", "key": key})
        turns, came = await asyncio.gather(
            program({"agents": where[1:], "seconds": seconds}),
            program({"agents": where[:1], "seconds": seconds, "attack": attack}),
        )
    await server.close()
    turns.sort()
    return {
        "attack": attack,
        "what came of it": ", ".join(f"{count} x {what}" for what, count in came.items()),
        "turns": len(turns),
        "p50 ms": 1000 * statistics.median(turns),
        "p99 ms": 1000 * turns[math.ceil(0.99 * len(turns)) - 1],
        "longest ms": 1000 * turns[-1],
    }


def main() -> None:
    """A row for each attack, without one first."""
    from rlcore.api.tokens import load_tokenizer
    from rlcore_machine import settle_heap
    from rlcore_testing.caller import make_caller

    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    args = options.parse_args()
    facts = machine(args.threads)
    tokenizer = load_tokenizer(make_caller(args.work / "attacked"))
    settle_heap()  # as a run does when it has started
    rows = []
    for attack in ATTACKS:
        rows.append(asyncio.run(measure(tokenizer, attack, args.seconds)))
        say(f"{attack}: p99 {rows[-1]['p99 ms']:.1f} ms")
    worst = max(float(row["p99 ms"]) for row in rows)
    target = {
        "target": f"p99 of the others ≤ {P99_TARGET_MS:g} ms while one attacks",
        "measured": worst,
        "met": verdict(worst <= P99_TARGET_MS),
    }
    publish("attack", facts, {"rows": rows}, f"{table(rows)}\n\n{table([target])}", dry=args.dry)


if __name__ == "__main__":
    if sys.argv[1:] == ["--client"]:
        asyncio.run(client(json.loads(sys.stdin.readline())))
    else:
        main()
