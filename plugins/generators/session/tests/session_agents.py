"""Agents for the tests: they know nothing of rlcore but the session that they are given."""

import asyncio
from typing import Any

import anthropic
import openai

from rlcore_session.agents import AgentSession

TURNS = 3
LOOK = {"type": "object", "properties": {"where": {"type": "string"}}}
OPENAI_TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": LOOK}}]
ANTHROPIC_TOOLS: Any = [{"name": "look", "description": "looks", "input_schema": LOOK}]


async def by_openai(session: AgentSession) -> None:
    """Calls the tools that it is asked to call, and asks on where it is not."""
    async with openai.AsyncOpenAI(base_url=session.openai_url, api_key=session.api_key) as client:
        messages: list[Any] = list(session.task["messages"])
        for turn in range(TURNS):
            done = await client.chat.completions.create(
                model="any", messages=messages, tools=OPENAI_TOOLS, temperature=0.3
            )
            said = done.choices[0].message
            messages.append(said)
            for call in said.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": f"seen {turn}"})
            if not said.tool_calls:
                messages.append({"role": "user", "content": "go on"})


async def by_anthropic(session: AgentSession) -> None:
    """The same, in the other protocol, as a stream."""
    async with anthropic.AsyncAnthropic(base_url=session.anthropic_url, api_key=session.api_key) as client:
        messages: list[Any] = list(session.task["messages"])
        for turn in range(TURNS):
            async with client.messages.stream(
                model="any", max_tokens=200, messages=messages, tools=ANTHROPIC_TOOLS
            ) as stream:
                said = await stream.get_final_message()
            messages.append({"role": "assistant", "content": said.content})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": f"seen {turn}"}
                for block in said.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results or "go on"})


async def rewriting(session: AgentSession) -> None:
    """Two turns; then it sums its history up, as agents do when it grows, and has one turn more."""
    async with openai.AsyncOpenAI(base_url=session.openai_url, api_key=session.api_key) as client:
        messages: list[Any] = list(session.task["messages"])
        for _ in range(2):
            done = await client.chat.completions.create(model="any", messages=messages)
            messages += [done.choices[0].message, {"role": "user", "content": "go on"}]
        summary: Any = {"role": "user", "content": "What came before was summed up. Go on."}
        done = await client.chat.completions.create(model="any", messages=[summary])
    session.report(reward=0.25, parts={"summaries": 1})


async def forking(session: AgentSession) -> None:
    """One turn, and two ways to go on from it, at the same time."""
    async with openai.AsyncOpenAI(base_url=session.openai_url, api_key=session.api_key) as client:
        messages: list[Any] = list(session.task["messages"])
        done = await client.chat.completions.create(model="any", messages=messages)
        messages.append(done.choices[0].message)
        ways = [[*messages, {"role": "user", "content": way}] for way in ("left", "right")]
        await asyncio.gather(*(client.chat.completions.create(model="any", messages=way) for way in ways))


async def silent(session: AgentSession) -> None:
    """Never asks."""


async def crashing(session: AgentSession) -> None:
    """Asks once, and falls."""
    async with openai.AsyncOpenAI(base_url=session.openai_url, api_key=session.api_key) as client:
        await client.chat.completions.create(model="any", messages=session.task["messages"])
    raise KeyError("lost")


async def endless(session: AgentSession) -> None:
    """Waits for something that does not come."""
    await asyncio.Event().wait()


def blocking(session: AgentSession) -> None:
    """No coroutine."""
