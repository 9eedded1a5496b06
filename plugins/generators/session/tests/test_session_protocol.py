"""What the endpoint says, read by the SDKs; and the tokens of a real model, compared with its own log."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anthropic
import openai
import pytest
from hypothesis import given, settings, strategies as st

from rlcore.api.errors import DataError
from rlcore.api.generation import Completion, GenerationContext, Request
from rlcore.api.tokens import load_tokenizer
from rlcore.api.types import GenerationStatus, Prompt, Sample, Sampling
from rlcore.engines.client_wire import completion
from rlcore.rollout.context import EngineContext
from rlcore_local.testing import Local
from rlcore_session import anthropic_api, openai_api, server
from rlcore_session.chats import ApiError, Ask
from rlcore_session.record import Record
from rlcore_session.server import SessionServer
from rlcore_session.session import Session
from rlcore_testing.chat import END, save_chat_tokenizer
from rlcore_testing.tiny import make_qwen3
from rlcore_testing.token_engine import CountingReward, TokenEngine
from rlcore_toolkit import ToolFormat, render_prompt

USER: Any = {"role": "user", "content": "look around"}
LOOK: Any = {"type": "object", "properties": {"where": {"type": "string"}}}
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": LOOK}}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"where": "up"}}\n</tool_call>'
PENDING = Sample(
    prompt=Prompt(prompt_id="p", text="hello"), prompt_ids=(1,), group_id=0, index=0, rollout_id="0.0", seed=1
)


class Served:
    """One session behind a server."""

    def __init__(self, server: SessionServer, session: Session, token: str) -> None:
        self.session, self.token = session, token
        self.openai = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=token)
        self.anthropic = anthropic.AsyncAnthropic(base_url=server.url, api_key=token)
        self.url = server.url


@asynccontextmanager
async def served(ctx: GenerationContext, **settings: Any) -> AsyncIterator[Served]:
    server = SessionServer()
    await server.start()
    session = Session(ctx, PENDING, **{"max_turns": 20, "how": None, **settings})
    session.task = {"prompt_id": "p"}
    with server.open(session, ctx) as token:
        found = Served(server, session, token)
        async with found.openai, found.anthropic:
            yield found
    session.close()
    await server.close()


def saying(*answers: str) -> EngineContext:
    """A context whose policy says `answers`, one after the other."""
    left = list(answers)
    engine = TokenEngine(lambda prompt, seed: left.pop(0))
    return EngineContext(
        engine, engine.tokenizer, Sampling(max_tokens=1000), CountingReward(), context_length=2000
    )


async def test_an_answer_of_each_protocol() -> None:
    async with served(saying(f"So.\n{CALL}", f"So.\n{CALL}")) as at:
        done = await at.openai.chat.completions.create(
            model="m", messages=[USER], tools=TOOLS, logprobs=True, max_tokens=500
        )
        (choice,) = done.choices
        assert (choice.finish_reason, choice.message.content, done.model) == ("tool_calls", "So.", "m")
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"where": "up"})
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert [one.logprob for one in choice.logprobs.content] == at.session.record.branches[0].log_probs
        assert choice.logprobs.content[-1].token == "<|im_end|>"
        assert done.usage is not None
        assert done.usage.completion_tokens == len(f"So.\n{CALL}") + 1
        said = await at.anthropic.messages.create(
            model="m",
            max_tokens=500,
            messages=[USER],
            tools=[{"name": "look", "description": "", "input_schema": LOOK}],
        )
        assert said.stop_reason == "tool_use"
        text, use = said.content
        assert text.type == "text"
        assert text.text == "So."
        assert use.type == "tool_use"
        assert (use.name, use.input) == ("look", {"where": "up"})
        assert said.usage.output_tokens == done.usage.completion_tokens
        count = await at.anthropic.messages.count_tokens(model="m", messages=[USER])
        assert count.input_tokens < said.usage.input_tokens, "without the tools"
        assert [model.id async for model in at.openai.models.list()] == ["policy"]


class Silent(TokenEngine):
    """Answers no request; counts those that are given up."""

    def __init__(self) -> None:
        super().__init__(lambda prompt, seed: "")
        self.given_up = 0

    async def generate(self, *args: Any, **settings: Any) -> list[Completion]:
        try:
            return await asyncio.Future[list[Completion]]()
        finally:
            self.given_up += 1


async def test_a_request_that_nobody_waits_for_is_given_up() -> None:
    """A client that times out and asks again, as both SDKs do: the engine is told each time."""
    engine = Silent()
    ctx = EngineContext(engine, engine.tokenizer, Sampling(max_tokens=100), CountingReward())
    async with served(ctx) as at:
        with pytest.raises(openai.APITimeoutError):
            await at.openai.with_options(timeout=0.2, max_retries=1).chat.completions.create(
                model="m", messages=[USER]
            )
        with pytest.raises(anthropic.APITimeoutError):
            await at.anthropic.with_options(timeout=0.2, max_retries=0).messages.create(
                model="m", max_tokens=10, messages=[USER]
            )
        async with asyncio.timeout(10):
            while engine.given_up < 3:
                await asyncio.sleep(0.01)
        assert at.session.record.branches == []


async def test_a_stream_says_the_same() -> None:
    async with served(saying(f"So.\n{CALL}", f"So.\n{CALL}")) as at:
        async with at.openai.chat.completions.stream(model="m", messages=[USER], tools=TOOLS) as stream:
            final = await stream.get_final_completion()
        (choice,) = final.choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "So.")
        assert choice.message.tool_calls is not None
        assert json.loads(choice.message.tool_calls[0].function.arguments) == {"where": "up"}
        chunks = [
            chunk
            async for chunk in await at.openai.chat.completions.create(
                model="m",
                messages=[USER],
                tools=TOOLS,
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == len(f"So.\n{CALL}") + 1


async def test_a_stop_string_ends_a_turn_and_its_tokens_stay() -> None:
    async with served(saying("one two", "one two", "x")) as at:
        done = await at.openai.chat.completions.create(model="m", messages=[USER], stop=["two"])
        assert (done.choices[0].finish_reason, done.choices[0].message.content) == ("stop", "one ")
        said = await at.anthropic.messages.create(
            model="m", max_tokens=3, messages=[USER], stop_sequences=["never"]
        )
        assert (said.stop_reason, said.stop_sequence) == ("max_tokens", None)


async def test_one_chat_in_two_protocols_is_one_trajectory() -> None:
    async with served(saying("first", "second", "third")) as at:
        one = (await at.openai.chat.completions.create(model="m", messages=[USER])).choices[0].message
        two = await at.anthropic.messages.create(
            model="m",
            max_tokens=100,
            messages=[
                USER,
                {"role": "assistant", "content": f"{one.content} "},
                {"role": "user", "content": "?"},
            ],
        )
        (said,) = two.content
        assert said.type == "text"
        await at.openai.chat.completions.create(
            model="m",
            messages=[
                USER,
                {"role": "assistant", "content": one.content},
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": said.text},
                {"role": "user", "content": "!"},
            ],
        )
        (branch,) = at.session.record.branches
        assert sum(branch.loss_mask) == len("first") + len("second") + len("third") + 3


async def test_several_answers_are_branches() -> None:
    """Each of them can be gone on from, and all of them are trained on."""
    async with served(saying("zero", "one", "two", "on", "off")) as at:
        done = await at.openai.chat.completions.create(model="m", messages=[USER], n=3, logprobs=True)
        said = [choice.message.content for choice in done.choices]
        assert [choice.index for choice in done.choices] == [0, 1, 2]
        assert said == ["zero", "one", "two"]
        assert done.usage is not None
        assert done.usage.completion_tokens == sum(len(text) + 1 for text in ("zero", "one", "two"))
        assert at.session.last is not None
        assert at.session.last.content == "zero", "what most clients read"
        assert [branch.response_ids for branch in at.session.record.branches][-1] == list(
            at.session.last.completion.token_ids
        )
        messages: list[Any] = [
            USER,
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": "?"},
        ]
        stream = await at.openai.chat.completions.create(model="m", messages=messages, n=2, stream=True)
        texts: dict[int, str] = {}
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        assert texts == {0: "on", 1: "off"}
        assert at.session.turns == 5
        branches = at.session.record.branches
        assert sorted(sum(branch.loss_mask) for branch in branches) == sorted(
            [len("zero") + 1, len("two") + 1, len("one") + 1 + len("off") + 1, len("on") + 1]
        ), "one of two goes on with the tokens of its beginning, the other has them as its prompt"


REFUSED: dict[str, dict[str, Any]] = {
    "n: found 0, expected an integer of at least 1": {"n": 0},
    "The session has had 0 turns, and is asked for 21 .--generator.max-turns 20": {"n": 21},
    "501 messages are more tokens than fit": {"messages": [USER] * 501},
    "frequency_penalty: found 0.5": {"frequency_penalty": 0.5},
    "top_logprobs: found 3": {"top_logprobs": 3, "logprobs": True},
    "tool_choice: found 'required'": {"tool_choice": "required"},
    "messages: expected a list": {"messages": []},
    "found the role 'wizard'": {"messages": [{"role": "wizard", "content": "x"}]},
    "content of type 'image_url'": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    "max_completion_tokens: found 0.5": {"max_tokens": 0.5},
    "'chat_template' is not offered; expected some of enable_thinking": {
        "extra_body": {"chat_template_kwargs": {"chat_template": "{% for i in range(10**9) %}{% endfor %}"}}
    },
    "chat_template_kwargs: input should be a valid dict": {"extra_body": {"chat_template_kwargs": "x"}},
    "chat_template_kwargs.thinking.*: ": {"extra_body": {"chat_template_kwargs": {"thinking": [1]}}},
    "tools: input should be a valid list": {"tools": 5},
    "tools.0.function.name: input should be a valid string": {"tools": [{"function": {"name": 5}}]},
    "stop.*: input should be a valid": {"stop": [3]},
    "stop.*should have at least 1 character": {"stop": ""},
    "stop.*at most 16 items": {"stop": ["x"] * 17},
    "stream_options: input should be": {"extra_body": {"stream_options": 1}},
    "messages.0.role: input should be a valid string": {"messages": [{"role": ["user"], "content": "x"}]},
    "messages.0.tool_calls.0.function.name: field required": {
        "messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]
    },
    "arguments of a tool call are no JSON": {
        "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]
    },
}


@pytest.mark.parametrize(("reason", "fields"), REFUSED.items())
async def test_what_cannot_be_done_is_refused(reason: str, fields: dict[str, Any]) -> None:
    async with served(saying()) as at:
        with pytest.raises(openai.BadRequestError, match=reason):
            await at.openai.chat.completions.create(**{"model": "m", "messages": [USER], **fields})


async def test_what_anthropics_protocol_cannot_do() -> None:
    async with served(saying()) as at:
        ask = at.anthropic.messages.create
        image: Any = {"type": "image", "source": {"type": "url", "url": "x"}}
        tool: Any = {"type": "web_search_20250305", "name": "web_search"}
        with pytest.raises(anthropic.BadRequestError, match="a block of type 'image'"):
            await ask(model="m", max_tokens=1, messages=[{"role": "user", "content": [image]}])
        with pytest.raises(anthropic.BadRequestError, match="tools with an input_schema alone"):
            await ask(model="m", max_tokens=1, messages=[USER], tools=[tool])
        with pytest.raises(anthropic.BadRequestError, match="tool_choice: found 'any'"):
            await ask(model="m", max_tokens=1, messages=[USER], tool_choice={"type": "any"})
        wrong: dict[str, Any] = {
            "stop_sequences: input should be": {"stop_sequences": 5},
            "thinking: input should be": {"thinking": "x"},
            "tools.0.name: field required": {"tools": [{"input_schema": {}}]},
            "messages.0.content.*: input should be": {"messages": [{"role": "user", "content": 5}]},
        }
        for reason, fields in wrong.items():
            with pytest.raises(anthropic.BadRequestError, match=reason):
                await ask(**{"model": "m", "max_tokens": 1, "messages": [USER], **fields})


async def test_a_token_is_good_for_its_session_while_it_lasts() -> None:
    async with served(saying("x")) as at:
        stranger = openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key="sk-other")
        with pytest.raises(openai.AuthenticationError, match="not that of a session"):
            await stranger.models.list()
        await stranger.close()
        with pytest.raises(openai.NotFoundError):
            await at.openai.completions.create(model="m", prompt="x")


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ({"reward": "much"}, "expected a finite number"),
        ({"score": 1}, "score: not known"),
        ({"answer": 1}, "a text"),
        ({"parts": 1}, "parts: found 1, expected an object"),
        ({"reward": 1, "parts": {"a": None}}, "parts.a: found None, expected a finite number"),
        ({"reward": 1, "parts": {"a": 1, "b": True}}, "parts.b: found True"),
        ({"reward": 1, "parts": {"a": [1]}}, "parts.a: found"),
        ({"reward": "2.5", "parts": {"reward": 1}}, "reward: found '2.5', expected a finite number"),
        ({"reward": True, "parts": {"reward": 1}}, "reward: found True, expected a finite number"),
        ({"reward": 1, "parts": {"a": 1}, "answer": 2}, "answer: found 2"),
    ],
)
async def test_a_report_that_is_refused_leaves_nothing(report: dict[str, Any], reason: str) -> None:
    async with served(saying()) as at:
        with pytest.raises(openai.BadRequestError, match=reason):
            await at.openai.post("/report", body=report, cast_to=object)
        assert (at.session.reward, at.session.parts, at.session.answer) == (None, {}, None)


async def test_a_part_may_have_the_name_of_the_reward() -> None:
    async with served(saying()) as at:
        await at.openai.post("/report", body={"reward": 0.5, "parts": {"reward": 2}}, cast_to=object)
        assert (at.session.reward, at.session.parts) == (0.5, {"reward": 2.0})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" * 100_000, "is no JSON"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "is no JSON"),
        (b'{"tools": ' + b'{"function":' * 500 + b"1" + b"}" * 501, "tools: input should be a valid list"),
        (
            b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": "f", '
            b'"parameters": ' + b'{"a":' * 1015 + b"1" + b"}" * 1017 + b"]}",
            "nested too deeply|cannot format",
        ),
        (b" " * 3 * 2**20, "bytes, which are more tokens than fit"),
    ],
)
@pytest.mark.parametrize("path", ["chat/completions", "messages"])
async def test_bodies_that_nobody_can_read(body: bytes, reason: str, path: str) -> None:
    async with served(saying()) as at, aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {at.token}"}
        async with http.post(f"{at.url}/v1/{path}", data=BytesIO(body), headers=headers) as answer:
            assert answer.status == 400
            message = (await answer.json())["error"]["message"]
            assert re.search(reason, message) or path == "messages", message
        assert at.session.refused_for_length is ("more tokens" in message)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("type", "text", "name", "content", "function", "id", "role")), inner, max_size=4
        )
    ),
    max_leaves=8,
)
TEXTS = st.sampled_from(("user", "assistant", "tool", "system")) | ANY_JSON
CALLS = st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": TEXTS, "arguments": ANY_JSON})})
BLOCKS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(("text", "tool_use", "tool_result")),
        "text": TEXTS,
        "content": TEXTS,
        "input": ANY_JSON,
    }
)
MESSAGES = st.fixed_dictionaries(
    {"role": TEXTS, "content": TEXTS | st.lists(BLOCKS, max_size=2)},
    optional={"tool_calls": ANY_JSON | st.lists(CALLS, max_size=2), "tool_call_id": ANY_JSON},
)
BODIES = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES, min_size=1, max_size=3) | ANY_JSON},
    optional={
        name: ANY_JSON
        for name in (
            *("tools", "stop", "stream", "stream_options", "chat_template_kwargs", "model", "n", "logprobs"),
            *("tool_choice", "max_tokens", "system", "thinking", "stop_sequences", "response_format"),
        )
    },
)


@pytest.mark.parametrize("read", [openai_api.read_ask, anthropic_api.read_ask])
@given(body=BODIES)
@settings(max_examples=300, deadline=None)
def test_a_request_is_read_or_refused(read: Callable[[dict[str, Any]], Ask], body: dict[str, Any]) -> None:
    """Whatever it holds: there is no other error, and what is read can be written, or not, as a chat."""
    record = Record(saying().tokenizer)
    with suppress(ApiError, DataError):
        ask = read(body)
        assert record.plan(ask).prompt_ids


async def test_a_body_that_does_not_come_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_LIMIT_S", 0.1)
    async with served(saying()) as at, asyncio.timeout(20):
        url = urlsplit(at.url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        head = f"Host: {url.netloc}\r\nAuthorization: Bearer {at.token}\r\nContent-Length: 10\r\n\r\n"
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{head}".encode())
        assert b" 408 " in await reader.readuntil(b"\r\n")
        writer.close()


async def test_a_long_chat_holds_up_nobody_else(tmp_path: Path) -> None:
    """A megabyte takes a tokenizer a second; the event loop goes on."""
    save_chat_tokenizer(tmp_path)
    ctx = EngineContext(
        TokenEngine(lambda prompt, seed: ""),
        load_tokenizer(tmp_path),
        Sampling(max_tokens=10),
        CountingReward(),
        context_length=2000,
    )
    async with served(ctx) as at:
        worst = 0.0

        async def look() -> None:
            nonlocal worst
            while True:
                begin = time.perf_counter()
                await asyncio.sleep(0.001)
                worst = max(worst, time.perf_counter() - begin)

        looking = asyncio.ensure_future(look())
        long: Any = {"role": "user", "content": "word " * 200_000}
        begin = time.perf_counter()
        with pytest.raises(openai.BadRequestError, match="leaves no room for an answer"):
            await at.openai.chat.completions.create(model="m", messages=[long])
        took = time.perf_counter() - begin
        await asyncio.sleep(0.01)  # it looks once more, whoever was served first
        looking.cancel()
        assert worst < took / 2, f"{worst:.3f} of {took:.3f} s"


# --- a real model --------------------------------------------------------------------------------------


class Logged:
    """The `local` engine's own scheduler and sampler; `log`: every prompt with what was sampled after it."""

    def __init__(self, path: Path, end: int) -> None:
        self._local, self._end = Local(path), end
        self.log: list[tuple[tuple[int, ...], Completion]] = []

    async def generate(self, request: Request) -> list[Completion]:
        one = self._local.sequence(
            request.rid,
            list(request.input_ids),
            max_new_tokens=request.sampling.max_tokens,
            sampling_seed=request.seed,
            stop_token_ids=[self._end],
        )
        answer = self._local.run([one])[request.rid]
        done = completion(answer, prompt_tokens=len(request.input_ids))
        self.log.append((tuple(request.input_ids), done))
        return [done]

    async def abort(self) -> None:
        raise AssertionError("nobody interrupts")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    path = tmp_path_factory.mktemp("model")
    ids = save_chat_tokenizer(path)
    make_qwen3(path, vocab_size=len(ids), max_position_embeddings=2048)
    return path, ids[END[ToolFormat.HERMES]]


async def test_every_trained_token_is_the_engines(model: tuple[Path, int]) -> None:
    """Four turns each in both protocols; the text alone would have given other tokens."""
    path, end = model
    engine, tokenizer = Logged(path, end), load_tokenizer(path)
    ctx = EngineContext(engine, tokenizer, Sampling(max_tokens=600), CountingReward())
    async with served(ctx) as at:
        chat: list[Any] = [USER]
        other: list[Any] = [{"role": "user", "content": "look elsewhere"}]
        for turn in range(4):
            done = await at.openai.chat.completions.create(
                model="m", messages=chat, tools=TOOLS, max_tokens=40
            )
            chat.append(done.choices[0].message.model_dump())
            assert engine.log[-1][0] != render_prompt(tokenizer, chat[:-1], TOOLS) or not turn
            chat.append({"role": "tool", "content": str(turn), "tool_call_id": "call"})
            said = await at.anthropic.messages.create(model="m", max_tokens=40, messages=other)
            other += [{"role": "assistant", "content": said.content}, USER]
        samples = at.session.record.samples(PENDING, GenerationStatus.COMPLETED, "")
    assert len(samples) == 2
    assert len(engine.log) == 8
    drawn = {
        (ids + one.token_ids[:place]): (token, log_prob)
        for ids, one in engine.log
        for place, (token, log_prob) in enumerate(zip(one.token_ids, one.log_probs, strict=True))
    }
    trained = 0
    for sample in samples:
        ids = sample.prompt_ids + sample.response_ids
        for place in (place for place, live in enumerate(sample.loss_mask) if live):
            before = ids[: len(sample.prompt_ids) + place]
            assert drawn[before] == (sample.response_ids[place], sample.log_probs[place])
            trained += 1
    assert trained == sum(len(one.token_ids) for _, one in engine.log)
