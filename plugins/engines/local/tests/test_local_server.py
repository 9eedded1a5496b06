"""The server as a process, over HTTP."""

import asyncio
import base64
import json
import math
import os
import re
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from safetensors.torch import load_file, save_file

from rlcore.weights.checksums import checksum
from rlcore_local import app

TOKEN = "a-token"
PROMPT = [5, 6, 7, 8]
LONG: dict[str, Any] = {"max_new_tokens": 240, "ignore_eos": True}
LIMIT = 60.0

Json = Any
Call = Callable[..., Any]


@dataclass(frozen=True)
class Server:
    """A running process."""

    process: subprocess.Popen[str]
    url: str
    weights_dir: Path


def start(model: Path, weights_dir: Path, *extra: str, token: str = TOKEN) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rlcore_local", "--model-path", str(model)]
    command += ["--weights-dir", str(weights_dir), "--max-batch", "8", *extra]
    env = {**os.environ, "RLCORE_ENGINE_TOKEN": token, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=LIMIT)
    return f"http://127.0.0.1:{json.loads(line)['port']}"


@pytest.fixture(scope="module")
def server(letters_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the module; each test leaves it idle, with the weights it started with."""
    weights_dir = tmp_path_factory.mktemp("weights")
    process = start(letters_path, weights_dir)
    try:
        yield Server(process, url_of(process), weights_dir)
    finally:
        process.kill()
        process.communicate(timeout=LIMIT)


@pytest.fixture
async def call(server: Server) -> AsyncIterator[Call]:
    """`await call(path, body, status=200)`: the JSON or text of the answer."""
    timeout = aiohttp.ClientTimeout(total=LIMIT)
    async with aiohttp.ClientSession(server.url, timeout=timeout) as session:
        bearer = {"Authorization": f"Bearer {TOKEN}"}

        async def post(
            path: str, body: Json = None, *, status: int = 200, headers: dict[str, str] = bearer, **more: str
        ) -> Json:
            async with session.post(path, json=body or {}, headers={**headers, **more}) as response:
                text = await response.text()
                assert response.status == status, text
                return json.loads(text) if response.content_type == "application/json" else text

        yield post


def generate(prompt: Json = PROMPT, *, rid: Json = None, stream: bool = False, **params: Json) -> Json:
    return {
        "input_ids": prompt,
        "sampling_params": params,
        "return_logprob": True,
        "rid": rid,
        "stream": stream,
    }


async def until_running(call: Call, count: int) -> None:
    """Wait until some samples have been given a token."""
    before = (await call("/server_info"))["generated_tokens"]
    async with asyncio.timeout(LIMIT):
        while True:
            info = await call("/server_info")
            if info["requests"]["running"] == count and info["generated_tokens"] > before + 2 * count:
                return


@pytest.mark.parametrize("path", ["/health_generate", "/generate", "/server_info", "/no_such_path"])
async def test_nothing_is_said_without_the_token(path: str, call: Call) -> None:
    for headers in ({}, {"Authorization": "Bearer another"}, {"Authorization": TOKEN}):
        assert await call(path, status=401, headers=headers) == {"error": "Unauthorized"}


async def test_one_prompt_gives_an_object_and_many_give_a_list(call: Call) -> None:
    one = await call("/generate", generate(max_new_tokens=5, ignore_eos=True))
    meta = one["meta_info"]
    assert len(one["output_ids"]) == meta["completion_tokens"] == 5
    assert one["text"]
    assert meta["prompt_tokens"] == 4
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 5}]
    assert meta["input_token_logprobs"] == []
    many = await call("/generate", generate([PROMPT, PROMPT[:2]], rid="r", n=2, max_new_tokens=3))
    assert [each["meta_info"]["id"] for each in many] == ["r_0_0", "r_0_1", "r_1_0", "r_1_1"]
    assert [each["meta_info"]["prompt_tokens"] for each in many] == [4, 4, 2, 2]


async def test_samples_differ_and_seeds_repeat_them(call: Call) -> None:
    def ids(answers: Json) -> list[list[int]]:
        return [each["output_ids"] for each in answers]

    free = [ids(await call("/generate", generate(n=2, max_new_tokens=12))) for _ in range(2)]
    assert len({tuple(one) for pair in free for one in pair}) == 4
    seeded = [
        ids(await call("/generate", generate(n=2, max_new_tokens=12, sampling_seed=3))) for _ in range(2)
    ]
    assert seeded[0] == seeded[1]
    assert seeded[0][0] != seeded[0][1]


async def test_packed_tokens_and_log_probs_are_those_of_the_rows(call: Call) -> None:
    body = {**generate(n=2, max_new_tokens=12, sampling_seed=3), "logprob_start_len": 1}
    plain = await call("/generate", body)
    for one, expected in zip(await call("/generate", {**body, "packed": True}), plain, strict=True):
        assert one["text"] == expected["text"]
        assert "output_ids" not in one
        for name in ("output", "input"):
            rows = expected["meta_info"][f"{name}_token_logprobs"]
            packed = one["meta_info"][f"{name}_packed"]
            values = [math.nan if row[0] is None else row[0] for row in rows]
            assert base64.b64decode(packed["ids"]) == struct.pack(f"<{len(rows)}i", *(row[1] for row in rows))
            assert base64.b64decode(packed["log_probs"]) == struct.pack(f"<{len(rows)}d", *values)


async def test_scoring_makes_no_token(call: Call) -> None:
    body = {**generate(max_new_tokens=0), "logprob_start_len": 1}
    answer = await call("/generate", body)
    assert answer["output_ids"] == []
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    scores = answer["meta_info"]["input_token_logprobs"]
    assert [token for _, token, _ in scores] == PROMPT[1:]
    assert [value is None for value, _, _ in scores] == [True, False, False]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Either text or input_ids"),
        ({"input_ids": []}, "must not be empty"),
        ({"input_ids": [[1], []]}, "must not be empty"),
        ({"input_ids": [3] * 256}, r"The input \(256 tokens\) is longer than the model's context length"),
        ({"input_ids": [3] * 200, "sampling_params": {"max_new_tokens": 57}}, "maximum context length"),
        ({"input_ids": [3, 96]}, r"must be in \[0, 95\]"),
        ({"input_ids": [3], "no_such_field": 1}, "no_such_field: Extra inputs"),
        ({"input_ids": [3], "sampling_params": {"no_such": 1}}, "no_such: Extra inputs"),
        ({"input_ids": [3], "sampling_params": {"temperature": -1}}, "temperature: "),
        ({"input_ids": [3], "sampling_params": {"top_p": 0}}, "top_p: "),
        ({"input_ids": [3], "sampling_params": {"top_k": 0}}, "top_k: "),
        ({"input_ids": [3], "sampling_params": {"max_new_tokens": "7"}}, "max_new_tokens: "),
        ({"input_ids": [3], "sampling_params": {"n": 10**9}}, "n: .*less than or equal to 4096"),
        ({"input_ids": [3], "sampling_params": [{}, {}]}, "2 entries for 1 prompts"),
        ({"input_ids": [3], "logprob_start_len": 1}, "logprob_start_len: "),
        ({"input_ids": [[3], [4]], "rid": ["a", "a"]}, "Duplicate request IDs"),
    ],
)
async def test_a_bad_request_is_refused_with_a_reason(body: Json, message: str, call: Call) -> None:
    answer = await call("/generate", body, status=400)
    assert re.search(message, answer["error"]["message"])


async def test_a_body_that_never_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_LIMIT_S", 0.1)

    async def read(request: web.Request) -> web.Response:
        return web.json_response(await app.read_body(request))

    async with TestServer(app.guarded(TOKEN, {"/read": read})) as served:
        reader, writer = await asyncio.open_connection(served.host, served.port)
        head = f"POST /read HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\n"
        writer.write(head.encode())
        answer = await asyncio.wait_for(reader.readline(), LIMIT)
        writer.close()
    assert answer == b"HTTP/1.1 408 Request Timeout\r\n"


async def test_a_model_that_generates_gives_no_scores(call: Call) -> None:
    refused = await call("/classify", {"input_ids": PROMPT}, status=400)
    assert refused["error"]["message"] == (
        "The model gives tokens, not scores: /classify needs a sequence classifier."
    )


async def test_a_stream_grows_to_the_answer(server: Server) -> None:
    body = generate(stream=True, max_new_tokens=6, ignore_eos=True, sampling_seed=1)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT)) as session,
        session.post(f"{server.url}/generate", json=body, headers=headers) as response,
    ):
        lines = [line.decode().strip() async for line in response.content]
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events.pop() == "[DONE]"
    states = [json.loads(event) for event in events]
    for before, after in pairwise(states):
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert before["meta_info"]["finish_reason"] is None
    assert states[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}


async def test_an_aborted_request_comes_back_with_its_tokens(call: Call) -> None:
    one, two = (
        asyncio.create_task(call("/generate", generate(rid=rid, n=2, **LONG))) for rid in ("one", "two")
    )
    await until_running(call, 4)
    await call("/abort_request", {"rid": "one"})
    for answer in await one:
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert 0 < len(answer["output_ids"]) < 240
        assert len(answer["meta_info"]["output_token_logprobs"]) == len(answer["output_ids"])
    await call("/abort_request", {"abort_all": True})
    assert {each["meta_info"]["finish_reason"]["type"] for each in await two} == {"abort"}


async def test_a_client_that_leaves_aborts_its_request(call: Call) -> None:
    task = asyncio.create_task(call("/generate", generate(**LONG)))
    await until_running(call, 1)
    task.cancel()
    async with asyncio.timeout(LIMIT):
        while (await call("/server_info"))["requests"]["running"]:
            pass


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_weights_change_during_a_pause(
    mode: str, call: Call, letters_path: Path, model_path: Callable[..., Path]
) -> None:
    task = asyncio.create_task(call("/generate", generate(**LONG)))
    await until_running(call, 1)
    await call("/pause_generation", {"mode": mode})
    update = {
        "model_path": str(model_path("qwen3", 1)),
        "weight_version": "2",
        "flush_cache": mode == "retract",
    }
    assert (await call("/update_weights_from_disk", update))["success"]
    assert not task.done()
    await call("/continue_generation")
    answer = await task
    first, second = answer["meta_info"]["weight_versions"]
    assert (first["start"], second["version"], second["end"]) == (0, "2", 240)
    assert first["end"] == second["start"]
    assert (await call("/model_info"))["weight_version"] == "2"
    back = {"model_path": str(letters_path), "weight_version": first["version"]}
    await call("/update_weights_from_disk", back)


async def test_pause_abort_ends_everything_and_holds_what_comes(call: Call) -> None:
    task = asyncio.create_task(call("/generate", generate(**LONG)))
    await until_running(call, 1)
    await call("/pause_generation")
    assert (await task)["meta_info"]["finish_reason"]["type"] == "abort"
    held = asyncio.create_task(call("/generate", generate(max_new_tokens=2)))
    async with asyncio.timeout(LIMIT):
        while (await call("/server_info"))["requests"]["waiting"] == 0:
            pass
    assert not held.done()
    await call("/health_generate")
    await call("/continue_generation")
    assert len((await held)["output_ids"]) > 0


async def test_weights_from_shared_memory(call: Call, server: Server, letters_path: Path) -> None:
    tensors = load_file(letters_path / "model.safetensors")
    changed = {name: (one * 0.5).bfloat16() for name, one in tensors.items()}
    save_file(changed, server.weights_dir / "w")
    layout = layout_of(server.weights_dir / "w")
    body = {"path": "w", "layout": layout, "weight_version": "5"}
    greedy = generate(max_new_tokens=12, temperature=0.0, ignore_eos=True)
    before = await call("/generate", greedy)
    old_sums = (await call("/weights_checker", {"action": "checksum"}))["ranks"][0]["checksums"]
    await call("/begin_weight_update")
    await call("/begin_weight_update", status=400)
    assert (await call("/update_weights_from_shared_memory", body))["success"]
    await call("/end_weight_update")
    after = await call("/generate", greedy)
    assert after["meta_info"]["weight_version"] == "5"
    assert [one[0] for one in after["meta_info"]["output_token_logprobs"]] != [
        one[0] for one in before["meta_info"]["output_token_logprobs"]
    ]
    sums = (await call("/weights_checker", {"action": "checksum"}))["ranks"][0]["checksums"]
    assert sums == {name: checksum(one.float()) for name, one in changed.items()} != old_sums
    (server.weights_dir / "link").symlink_to(letters_path / "model.safetensors")
    for path in (str(letters_path / "model.safetensors"), "../w", "link", "none"):
        answer = await call("/update_weights_from_shared_memory", {**body, "path": path}, status=400)
        assert "not a file inside" in answer["error"]["message"]
    wrong = {**body, "layout": [["lm_head.weight", "float32", [1], 0]]}
    assert not (await call("/update_weights_from_shared_memory", wrong, status=400))["success"]
    back = {"model_path": str(letters_path), "weight_version": before["meta_info"]["weight_version"]}
    await call("/update_weights_from_disk", back)
    assert await call("/weights_checker") == {
        "success": True,
        "message": "Success",
        "ranks": [{"checksums": old_sums}],
    }


def layout_of(file: Path) -> list[list[Json]]:
    """Of a safetensors file of bf16."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return [
        [
            name,
            {"F32": "float32", "BF16": "bfloat16"}[one["dtype"]],
            one["shape"],
            8 + size + one["data_offsets"][0],
        ]
        for name, one in header.items()
    ]


async def test_a_batch_is_answered_prompt_by_prompt(call: Call) -> None:
    """Each has its own `n` and its own refusal, and none waits for another."""
    long, short = {**LONG, "max_new_tokens": 60}, {**LONG, "max_new_tokens": 2}
    body = {
        "input_ids": [PROMPT, [10**6], PROMPT * 2, [9]],
        "sampling_params": [
            {**params, "n": n, "sampling_seed": n}
            for params, n in ((long, 1), (short, 1), (short, 2), (short, 3))
        ],
        "return_logprob": True,
    }

    async def lines() -> list[dict[str, Json]]:
        text = await call("/generate", body, Accept="application/x-ndjson")
        return [json.loads(line) for line in text.splitlines()]

    first, second = await lines(), await lines()
    assert [line["index"] for line in first][-1] == 0, "the long one"
    said = {line["index"]: line for line in first}
    assert "token ids must be in" in said[1]["error"]["message"]
    assert {index: len(line["answers"]) for index, line in said.items() if index != 1} == {0: 1, 2: 2, 3: 3}

    def drawn(found: list[dict[str, Json]]) -> dict[int, Json]:
        return {
            line["index"]: [one["meta_info"]["output_token_logprobs"] for one in line["answers"]]
            for line in found
            if "answers" in line
        }

    assert drawn(first) == drawn(second), "bit-equal"
    assert "must be the same" in (await call("/generate", body, status=400))["error"]["message"]
    same = {"input_ids": [[5], [6]], "rid": ["a", "a_0"], "sampling_params": [{"n": 2, **short}, short]}
    answer = await call("/generate", same, Accept="application/x-ndjson")
    assert "Duplicate" in json.loads(answer.splitlines()[0])["error"]["message"]
    streamed = await call("/generate", {**body, "stream": True}, status=400, Accept="application/x-ndjson")
    assert "stream: must be false" in streamed["error"]["message"]
    refused = await call("/generate", {"input_ids": [[5], 6]}, status=400, Accept="application/x-ndjson")
    assert "input_ids" in refused["error"]["message"]


async def test_memory_and_cache_are_given_back_when_idle(call: Call) -> None:
    assert "Cache flushed" in await call("/flush_cache")
    task = asyncio.create_task(call("/generate", generate(**LONG)))
    await until_running(call, 1)
    for path in ("/flush_cache", "/release_memory_occupation"):
        assert "error" in await call(path, status=400)
    await call("/abort_request", {"abort_all": True})
    await task
    await call("/release_memory_occupation")
    held = asyncio.create_task(call("/generate", generate(max_new_tokens=2)))
    async with asyncio.timeout(LIMIT):
        while (await call("/server_info"))["requests"]["waiting"] == 0:
            pass
    await call("/resume_memory_occupation", {"tags": ["kv_cache"]})
    assert (await held)["output_ids"]


async def test_text_goes_in_where_there_is_a_tokenizer(call: Call) -> None:
    answer = await call("/generate", {"text": chr(0x4E00 + 9), "sampling_params": {"max_new_tokens": 2}})
    assert answer["meta_info"]["prompt_tokens"] == 1
