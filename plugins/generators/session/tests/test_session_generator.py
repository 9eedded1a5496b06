"""Agents with the SDKs of OpenAI and Anthropic, against core's own contexts and an engine that remembers."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.api.errors import ConfigError, EngineError
from rlcore.api.generation import Completion, Generator
from rlcore.api.types import GenerationStatus, Group, Prompt, RewardStatus, Sample, Sampling
from rlcore.engines.client_http import RefusedError
from rlcore.learning.maths import token_weights
from rlcore.rollout.batch import to_batch
from rlcore.rollout.context import EngineContext
from rlcore_session.config import SessionConfig
from rlcore_session.generator import SessionGenerator
from rlcore_testing.generators import GeneratorConformance
from rlcore_testing.samples import sample_of
from rlcore_testing.token_engine import CountingReward, TokenEngine

AGENTS = Path(__file__).with_name("session_agents.py")
CHAT = ({"role": "user", "content": "look around"},)


def calls_a_tool(prompt: str, seed: int) -> str:
    call = f'{{"name": "look", "arguments": {{"where": "{seed % 11}"}}}}'
    return f"well {seed % 7}\n<tool_call>\n{call}\n</tool_call>" if seed % 3 else f"so {seed % 5}"


def session(agent: str, **settings: Any) -> SessionGenerator:
    return SessionGenerator(SessionConfig(agent=f"{AGENTS}:{agent}", **{"timeout": 60, **settings}))


def asked(engine: TokenEngine, index: int = 0, **changes: Any) -> Sample:
    ids = engine.tokenizer.apply_chat_template(list(CHAT), add_generation_prompt=True, tokenize=True)
    return sample_of(
        prompt=Prompt(prompt_id="p", text=CHAT, label="12"),
        prompt_ids=tuple(ids),
        index=index,
        seed=7 + index,
        **changes,
    )


def context(engine: TokenEngine, *, max_tokens: int = 2000, context_length: int = 4000) -> EngineContext:
    return EngineContext(
        engine,
        engine.tokenizer,
        Sampling(max_tokens=max_tokens),
        CountingReward(),
        context_length=context_length,
    )


async def made(generator: SessionGenerator, engine: TokenEngine, **limits: int) -> list[Sample]:
    try:
        return await generator.generate(context(engine, **limits), asked(engine))
    finally:
        await generator.close()


class Sessions(GeneratorConformance):
    agent = ""
    max_tokens = 2000

    def generator(self) -> Generator:
        return session(self.agent)

    def prompt(self) -> Prompt:
        return Prompt(prompt_id="p", text=CHAT)


class TestOpenAI(Sessions):
    """Prompts without tools, so that they are those of the samples."""

    agent = "rewriting"


class TestTools(Sessions):
    agent = "by_openai"

    def answer(self, prompt: str, seed: int) -> str:
        return calls_a_tool(prompt, seed)

    def test_a_sample_keeps_its_ids(self) -> None:
        for pending, (sample,) in zip(self._pending(self._engine()), self._run(self._engine()), strict=True):
            assert sample.rollout_id == pending.rollout_id
            assert sample.prompt_ids != pending.prompt_ids, "the agent brings its tools"


class TestAnthropic(TestTools):
    agent = "by_anthropic"


async def test_both_protocols_give_the_same_tokens() -> None:
    engine = TokenEngine(calls_a_tool)
    (one,) = await made(session("by_openai"), engine)
    (other,) = await made(session("by_anthropic"), engine)
    assert one.metrics == {"turns": 3, "trajectories": 1, "malformed_tool_calls": 0, "own_sampling": 3}
    assert other.metrics == {**one.metrics, "own_sampling": 0}
    decode = engine.tokenizer.decode
    said, also = (decode(s.response_ids, skip_special_tokens=False) for s in (one, other))
    assert said == also, "only the description of the tool differs, which stands in the prompt"
    assert one.text == other.text


# --- several samples of one rollout --------------------------------------------------------------------


async def test_a_rewritten_history_is_a_new_trajectory_of_the_same_rollout() -> None:
    engine = TokenEngine(calls_a_tool)
    first, second = await made(session("rewriting", reward="agent"), engine)
    assert first.rollout_id == second.rollout_id
    assert first.text == second.text, "both are judged by the final answer"
    assert (first.score, second.score) == (second.score, first.score)
    assert first.score is not None
    assert (first.score.value, first.score.parts) == (0.25, {"summaries": 1})
    sibling = replace(first, rollout_id="0.1", index=1)
    group = Group(group_id=0, prompt=first.prompt, samples=(first, second, sibling))
    batch = to_batch([group], minibatches=1, version=0)
    assert batch.per_sample["rollout"].tolist() == [0, 0, 1]
    mask_R = batch.per_token["loss_mask"]
    weight_R = token_weights(
        mask_R, batch.segments, batch.per_sample["rollout"], normalizer="per_rollout", constant=1
    )
    live_B = torch.bincount(batch.segments, mask_R.double())
    of_B = torch.bincount(batch.segments, weight_R)
    torch.testing.assert_close(of_B[:2].sum(), torch.tensor(0.5, dtype=torch.float64))
    torch.testing.assert_close(of_B[0] / of_B[1], live_B[0] / live_B[1])


async def test_a_second_way_from_one_turn_shares_its_ids() -> None:
    engine = TokenEngine(calls_a_tool)
    one, other = await made(session("forking"), engine)
    trunk = asked(engine).prompt_ids
    assert one.prompt_ids == trunk
    first_turn = one.response_ids[: one.loss_mask.index(0)]
    assert other.prompt_ids[: len(trunk) + len(first_turn)] == trunk + first_turn
    assert {*other.loss_mask} == {1}, "what was sampled once is trained on once"


# --- ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "settings", "failure", "detail"),
    [
        ("silent", {}, "no_answer", "without an answer"),
        ("crashing", {}, "crashed", "KeyError: 'lost'"),
        ("endless", {"timeout": 0.2}, "timed_out", r"longer than 0.2 s"),
        ("by_openai", {"reward": "agent"}, "no_reward", "without the reward"),
    ],
)
async def test_an_agent_that_fails_is_a_failed_sample(
    caplog: pytest.LogCaptureFixture, agent: str, settings: dict[str, Any], failure: str, detail: str
) -> None:
    generator = session(agent, **settings)
    with caplog.at_level(logging.WARNING):
        (found,) = await made(generator, TokenEngine(calls_a_tool))
    assert (found.status, found.failure) == (GenerationStatus.FAILED, failure)
    assert (found.score, found.reward_status) == (None, RewardStatus.PENDING)
    assert detail in found.metadata["agent_error"]
    assert failure.replace("_", " ") in caplog.text


async def test_more_than_fits_is_truncated() -> None:
    engine = TokenEngine(calls_a_tool)
    (short,) = await made(session("by_openai"), engine, max_tokens=100)
    assert short.status is GenerationStatus.TRUNCATED
    assert len(short.response_ids) <= 100
    (narrow,) = await made(session("by_openai"), engine, context_length=300)
    assert narrow.status is GenerationStatus.TRUNCATED
    assert len(narrow.prompt_ids + narrow.response_ids) <= 300


async def test_an_agent_that_found_no_room_still_owes_its_reward() -> None:
    (found,) = await made(session("by_openai", reward="agent"), TokenEngine(calls_a_tool), max_tokens=100)
    assert (found.status, found.failure) == (GenerationStatus.FAILED, "no_reward")
    assert "did not fit" in found.metadata["agent_error"]


async def test_no_more_turns_than_allowed() -> None:
    (found,) = await made(session("by_openai", max_turns=2), TokenEngine(calls_a_tool))
    assert (found.status, found.metrics["turns"]) == (GenerationStatus.TRUNCATED, 2)


@pytest.mark.parametrize("error", [RefusedError("too long", 400), EngineError("the engine is gone")])
async def test_what_ends_the_engine_is_not_the_agents_fault(error: EngineError) -> None:
    class Broken(TokenEngine):
        async def generate(self, *_: Any, **__: Any) -> list[Completion]:
            raise error

    with pytest.raises(type(error), match=str(error)):
        await made(session("by_openai"), Broken(calls_a_tool))


async def test_so_many_agents_work_at_once() -> None:
    class Counting(TokenEngine):
        now = most = 0

        async def generate(self, *args: Any, **options: Any) -> list[Completion]:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.01)
            self.now -= 1
            return await super().generate(*args, **options)

    engine, generator = Counting(calls_a_tool), session("by_openai", max_agents=2)
    ctx = context(engine)
    try:
        await asyncio.gather(*(generator.generate(ctx, asked(engine, index)) for index in range(6)))
    finally:
        await generator.close()
    assert engine.most == 2


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        ("nowhere", "expected module:NAME or path/to/file.py:NAME"),
        ("no_such_module_:f", "cannot be loaded, ModuleNotFoundError"),
        (f"{AGENTS}:nobody", "cannot be loaded, AttributeError"),
        (f"{AGENTS}:blocking", "expected an async function"),
    ],
)
def test_an_agent_that_is_not_there(agent: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        SessionGenerator(SessionConfig(agent=agent))
    with pytest.raises(ConfigError, match="'no-such-program', which is no program"):
        SessionGenerator(SessionConfig(command=("no-such-program",)))


@pytest.mark.parametrize("settings", [{}, {"agent": "a:b", "command": ("c",)}])
def test_one_agent_it_must_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"either --generator.agent MODULE:FUNCTION or --generator.command"):
        SessionConfig(**settings)
