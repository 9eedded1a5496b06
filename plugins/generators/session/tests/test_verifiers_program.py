"""The program that plays environments of verifiers: of 0.1, and of today, in a folder of its own."""

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlcore import EngineContext, GenerationStatus, Prompt, Sample, Sampling
from rlcore_session import verifiers_program
from rlcore_session.config import SessionConfig
from rlcore_session.generator import SessionGenerator
from rlcore_testing.token_engine import CountingReward, TokenEngine

pytestmark = pytest.mark.full

TODAY = Path(sys.prefix) / "verifiers-today"
"""Where `make setup` puts the version that requirements-verifiers.txt names."""
needs_verifiers = pytest.mark.skipif(importlib.util.find_spec("verifiers") is None, reason="needs verifiers")
SUMS = """
import sys

import verifiers.v1 as vf

__all__ = ["PlainHarness", "SumsTaskset"]

ASK = '''
import json, sys, urllib.request
url, key, model, prompt = sys.argv[1:]
body = json.dumps({"model": model, "messages": [{"role": "user", "content": prompt}]}).encode()
headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", body, headers)).read()
'''

class PlainHarness(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **known):
        program = [sys.executable, "-c", ASK, endpoint, secret, ctx.model, data.prompt]
        return await runtime.run_program(program, {})

class SumsData(vf.TaskData):
    answer: int

class SumsTask(vf.Task[SumsData]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(str(self.data.answer) in trace.last_reply)

class SumsTaskset(vf.Taskset[SumsTask, vf.TasksetConfig]):
    def load(self):
        return [SumsTask(SumsData(prompt=f"{i} + {i}?", answer=2 * i), self.config.task) for i in range(5)]
"""
"""A taskset for verifiers 0.3 or later. Its own harnesses fetch packages by `uv`; this one needs none."""


TOOLS = '''
import verifiers as vf
from datasets import Dataset

def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one
        b: the other
    """
    return a + b

async def right(completion, answer, **rest):
    last = completion[-1]
    said = last["content"] if isinstance(last, dict) else last.content
    return float(answer in said)

def load_environment(answer="7"):
    rows = Dataset.from_list([{"question": "3 + 4?", "answer": answer}])
    return vf.ToolEnv(dataset=rows, tools=[add], rubric=vf.Rubric(funcs=[right]), max_turns=4)
'''
V1 = {
    "taskset": {"id": "sums_of_v1"},
    "agent": {"harness": {"id": "sums_of_v1"}, "runtime": {"type": "subprocess"}},
}


def calls_first(prompt: str, seed: int) -> str:
    call = '{"name": "add", "arguments": {"a": 3, "b": 4}}'
    return "It is 7." if call in prompt else f"<tool_call>\n{call}\n</tool_call>"


async def played(
    settings: Mapping[str, Any],
    number: int,
    answer: Callable[[str, int], str] = lambda prompt, seed: "it is 6",
) -> Sample:
    engine = TokenEngine(answer)
    command = (sys.executable, str(verifiers_program.__file__), json.dumps(settings))
    generator = SessionGenerator(SessionConfig(command=command, reward="agent", timeout=300))
    prompt = Prompt(prompt_id="p", text="play", metadata={"seed": number})
    ctx = EngineContext(
        engine, engine.tokenizer, Sampling(max_tokens=2000), CountingReward(), context_length=8000
    )
    try:
        pending = Sample(prompt=prompt, prompt_ids=(1,), group_id=0, index=0, rollout_id="0.0")
        [found] = await generator.generate(ctx, pending)
    finally:
        await generator.close()
    return found


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tools_of_verifiers.py").write_text(TOOLS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@needs_verifiers
async def test_an_environment_with_tools(tools: None) -> None:
    """verifiers' own loop makes the calls that the endpoint has read in the policy's text."""
    found = await played({"environment": "tools-of-verifiers"}, 0, calls_first)
    assert found.status is GenerationStatus.COMPLETED, found.metadata
    assert (found.text, found.metrics["turns"]) == ("It is 7.", 2)
    assert found.score is not None
    assert found.score.value == 1
    assert found.score.parts["right"] == 1
    assert found.score.parts["total_tool_calls"] == 1


@needs_verifiers
@pytest.mark.full  # verifiers takes seconds to import, in each program
@pytest.mark.parametrize(
    ("settings", "number", "said"),
    [
        ({"environment": "tools-of-verifiers"}, 1, "no row of number 1"),
        (V1, 0, "verifiers 0.3 or later is needed in this environment"),
    ],
)
async def test_what_there_is_not_is_told(
    tools: None, settings: dict[str, Any], number: int, said: str
) -> None:
    found = await played(settings, number)
    assert (found.status, found.failure) == (GenerationStatus.FAILED, "crashed")
    assert said in found.metadata["agent_error"]


@pytest.mark.skipif(not TODAY.is_dir(), reason="needs today's verifiers")
async def test_an_episode_is_a_sample_with_the_environments_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sums_of_v1.py").write_text(SUMS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TODAY), str(tmp_path)]))
    right, wrong, none = await asyncio.gather(*(played(V1, number) for number in (3, 2, 9)))
    assert right.status is GenerationStatus.COMPLETED, right.metadata
    assert right.text == "it is 6"
    assert right.score is not None
    assert wrong.score is not None
    assert (right.score.value, right.score.parts, wrong.score.value) == (1, {"right": 1}, 0)
    assert "no task of number 9" in none.metadata["agent_error"]
