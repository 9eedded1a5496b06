"""What the endpoint says, read by the SDKs; and the tokens of a real model, compared with its own log."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from rlcore.api.chat import render_prompt
from rlcore.api.generation import Completion, GenerationContext
from rlcore.api.tokens import load_tokenizer
from rlcore.api.tool_calls import ToolFormat
from rlcore.api.types import GenerationStatus, Prompt, Sample, Sampling
from rlcore.engines.client_wire import completion
from rlcore.rollout.context import EngineContext
from rlcore.testing.chat import END, save_chat_tokenizer
from rlcore.testing.tiny import make_qwen3
from rlcore.testing.token_engine import CountingReward, TokenEngine
from rlcore_local.testing import Local
from rlcore_session.server import SessionServer
from rlcore_session.session import Session

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
    return EngineContext(engine, engine.tokenizer, Sampling(max_tokens=1000), CountingReward())


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
        assert done.choices[0].finish_reason == "stop"
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


REFUSED: dict[str, dict[str, Any]] = {
    "n: found 2": {"n": 2},
    "frequency_penalty: found 0.5": {"frequency_penalty": 0.5},
    "top_logprobs: found 3": {"top_logprobs": 3, "logprobs": True},
    "tool_choice: found 'required'": {"tool_choice": "required"},
    "messages: expected a list": {"messages": []},
    "found the role 'wizard'": {"messages": [{"role": "wizard", "content": "x"}]},
    "content of type 'image_url'": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    "max_completion_tokens: found 0.5": {"max_tokens": 0.5},
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
    ],
)
async def test_a_report_that_says_nothing(report: dict[str, Any], reason: str) -> None:
    async with served(saying()) as at:
        with pytest.raises(openai.BadRequestError, match=reason):
            await at.openai.post("/report", body=report, cast_to=object)
        assert at.session.reward is None


# --- a real model --------------------------------------------------------------------------------------


class Logged:
    """The `local` engine's own scheduler and sampler; `log`: every prompt with what was sampled after it."""

    def __init__(self, path: Path, end: int) -> None:
        self._local, self._end = Local(path), end
        self.log: list[tuple[tuple[int, ...], Completion]] = []

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: Sampling,
        *,
        n: int,
        seed: int,
        rid: str,
        session: str | None,
    ) -> list[Completion]:
        one = self._local.sequence(
            rid,
            list(input_ids),
            max_new_tokens=sampling.max_tokens,
            sampling_seed=seed,
            stop_token_ids=[self._end],
        )
        answer = self._local.run([one])[rid]
        done = completion(answer, prompt_tokens=len(input_ids))
        self.log.append((tuple(input_ids), done))
        return [done]

    async def abort(self) -> None:
        raise AssertionError("nobody interrupts")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    path = tmp_path_factory.mktemp("model")
    ids = save_chat_tokenizer(path)
    make_qwen3(path, vocab_size=len(ids), max_position_embeddings=2048)
    return path, ids[END[ToolFormat.HERMES]]


Step = Callable[[Served, list[Any]], Any]


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
