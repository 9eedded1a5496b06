"""A model that nothing trains: it scores and chats at one address, whichever server stands for it."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from transformers import AutoTokenizer

from rlcore.engines.fleet import Fleet
from rlcore.engines.lifecycle import Health, Spares
from rlcore.engines.supervised_engine import SupervisedEngine
from rlcore.serving.frozen_group import FrozenEngine
from rlcore_local.testing import LOCAL
from rlcore_machine.network import HeldPort
from rlcore_testing.engine_server import TOKEN, HereLauncher

LIMIT_S = 280.0
IDS = tuple(range(3, 12))
CHAT = [{"role": "user", "content": "1+1="}]


async def post(port: int, path: str, body: Any, *, status: int = 200, token: str = TOKEN) -> Any:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        limit = aiohttp.ClientTimeout(total=LIMIT_S)
        async with session.post(f"http://127.0.0.1:{port}{path}", json=body, timeout=limit) as response:
            assert response.status == status, await response.text()
            return await response.json()


async def chat(port: int, *, status: int = 200, token: str = TOKEN, **fields: Any) -> Any:
    body = {"model": "any", "messages": CHAT, "temperature": 0, "max_tokens": 8, **fields}
    return await post(port, "/v1/chat/completions", body, status=status, token=token)


@pytest.mark.usefixtures("forked_servers")
async def test_it_is_replaced_at_its_address(model: Path, tmp_path: Path) -> None:
    held, spares = HeldPort(), Spares(limit=1)
    launcher = HereLauncher(LOCAL, model, tmp_path, port=held.number)
    health = Health(every_s=0.5, limit_s=60.0)
    slot = SupervisedEngine("Frozen model 'judge'", launcher, None, health=health, spares=spares)
    try:
        await slot.lifecycle.start()
        engine = FrozenEngine(Fleet([slot]))
        before = await engine.score(IDS, start=2), await chat(held.number)
        await refusals(held.number)
        await compare(model, held.number, before[1])
        server = await slot.lifecycle.serving()
        launcher.server().send_signal(signal.SIGKILL)
        async with asyncio.timeout(LIMIT_S):
            assert await engine.score(IDS, start=2) == before[0]  # of the server that takes its place
        assert (await slot.lifecycle.serving()).client.url == server.client.url
        assert (await chat(held.number))["choices"] == before[1]["choices"]
        assert (spares.used, launcher.starts) == (1, 2)
    finally:
        await slot.lifecycle.stop()
        held.close()


async def compare(model: Path, port: int, answer: Any) -> None:
    """A chat is answered as its text in the model's template is, token for token."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    text = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    ids = tokenizer.encode(text, add_special_tokens=False)
    params = {"temperature": 0.0, "max_new_tokens": 8}
    same = await post(port, "/generate", {"input_ids": ids, "sampling_params": params})
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": same["text"]}
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == {
        "prompt_tokens": len(ids),
        "completion_tokens": 8,
        "total_tokens": len(ids) + 8,
    }


async def refusals(port: int) -> None:
    """One sentence for what is not understood."""
    assert "Unauthorized" in str(await chat(port, status=401, token="another"))
    for fields, said in (
        ({"messages": []}, "messages"),
        ({"tools": []}, "tools"),
        ({"stream": True}, "stream"),
        ({"max_tokens": 100_000}, "maximum context length"),
    ):
        assert said in (await chat(port, status=400, **fields))["error"]["message"]
