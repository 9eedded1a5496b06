"""An agent that knows nothing of rlcore: OpenAI's SDK, two turns, and its own judgement of the result.

It asks the policy to copy a number. Where the answer has another length, it says so by asking again, once.
rlcore points the client at an endpoint of its own (`--generator session`) and trains on every token that the
policy samples there.
"""

from __future__ import annotations

from typing import Any

import openai
from openai.types.chat import ChatCompletionMessageParam

CLIENT = openai.AsyncOpenAI(base_url="http://localhost", api_key="of-the-session")
"""One pool of connections for all tasks: a client for each task costs more than its answers."""


async def solve(session: Any) -> None:
    """One task, from its first message to a report. `session`: `rlcore_session.agents.AgentSession`."""
    messages: list[ChatCompletionMessageParam] = list(session.task["messages"])
    wanted = str(session.task["metadata"]["number"])
    client = CLIENT.with_options(base_url=session.openai_url, api_key=session.api_key)
    answer, is_cut = await ask(client, messages)
    if is_cut or len(answer) != len(wanted):
        again: ChatCompletionMessageParam = {"role": "user", "content": f",{wanted}="}
        answer, is_cut = await ask(client, [*messages, {"role": "assistant", "content": answer}, again])
    hits = sum(a == b for a, b in zip(answer, wanted, strict=False))
    share = hits / max(len(answer), len(wanted))
    session.report(answer=answer, reward=share / 2 if is_cut else share)


async def ask(client: openai.AsyncOpenAI, messages: list[ChatCompletionMessageParam]) -> tuple[str, bool]:
    """The next message of the policy, and whether it was cut off."""
    done = await client.chat.completions.create(model="policy", messages=messages, max_tokens=4)
    (choice,) = done.choices
    return choice.message.content or "", choice.finish_reason == "length"
