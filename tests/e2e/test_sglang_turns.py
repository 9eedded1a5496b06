"""Generators of several turns on a real SGLang: every token that is trained on is in the engine's own log."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import Run, rows
from inputs import write_jsonl

from rlcore import TOKEN_VARIABLE, Part
from rlcore_sglang.config import SglangConfig
from rlcore_testing.caller import THOUGHTS, make_caller
from rlcore_testing.engine_server import TOKEN, launch_of, serving

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

PYTHON = "RLCORE_SGLANG_PYTHON"
START_LIMIT_S, LIMIT_S = 300.0, 500.0
CONTEXT, STEPS, PROMPTS, GROUP, TURNS = 1024, 2, 2, 2, 3

LOOKOUT = '''
import anthropic
import openai

SCHEMA = {"type": "object", "properties": {"where": {"type": "string"}}}

def look(where: str) -> str:
    """Looks."""
    return f"nothing at {where}"

async def solve(session):
    """Three turns, by the one SDK or by the other."""
    ask = by_anthropic if session.seed % 2 else by_openai
    await ask(session, list(session.task["messages"]))
    session.report(reward=session.seed % 7)

async def by_openai(session, chat):
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    async with openai.AsyncOpenAI(base_url=session.openai_url, api_key=session.api_key) as client:
        for turn in range(3):
            done = await client.chat.completions.create(
                model="any", messages=chat, tools=tools, max_tokens=64
            )
            said = done.choices[0].message
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": f"nothing {turn}"}
                for call in said.tool_calls or ()
            ]
            chat += [said, *(results or [{"role": "user", "content": "go on"}])]

async def by_anthropic(session, chat):
    tools = [{"name": "look", "description": "looks", "input_schema": SCHEMA}]
    async with anthropic.AsyncAnthropic(base_url=session.anthropic_url, api_key=session.api_key) as client:
        for turn in range(3):
            said = await client.messages.create(model="any", messages=chat, tools=tools, max_tokens=64)
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": f"nothing {turn}"}
                for block in said.content
                if block.type == "tool_use"
            ]
            chat += [
                {"role": "assistant", "content": said.content},
                {"role": "user", "content": results or "go on"},
            ]
'''
GENERATORS = {
    "session": ("--generator.agent", "{folder}/lookout.py:solve", "--generator.reward", "agent"),
    "tools": ("--generator.function", "lookout:look", "--generator.max-turns", "3"),
}

Answer = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens and their log-probs."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server that logs its requests as JSON in the folder `log`."""

    url: str
    model: Path
    log: Path

    def answers(self) -> dict[tuple[int, ...], set[Answer]]:
        """Of each prompt that it was asked, all that it has drawn."""
        found: dict[tuple[int, ...], set[Answer]] = defaultdict(set)
        for file in self.log.iterdir():
            for line in file.read_text().splitlines():
                event = json.loads(line.partition("] ")[2])
                if event["event"] == "request.finished" and event["obj"]["return_logprob"]:  # else a warm-up
                    drawn = event["out"]["meta_info"]["output_token_logprobs"]
                    ids, log_probs = tuple(one[1] for one in drawn), tuple(one[0] for one in drawn)
                    found[tuple(event["obj"]["input_ids"])].add((ids, log_probs))
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    assert PYTHON in os.environ, f"{PYTHON} must name the interpreter that has sglang (`make test-sglang`)"
    root = tmp_path_factory.mktemp("turns")
    model, log = make_caller(root / "model", thoughts=THOUGHTS[:5], context=CONTEXT), root / "requests"
    fields = {
        "log_requests": True,
        "log_requests_level": 3,
        "log_requests_format": "json",
        "log_requests_target": [str(log)],
    }
    config = SglangConfig(python=os.environ[PYTHON], start_limit_s=START_LIMIT_S)
    part = Part(name="sglang", factory="rlcore_sglang.engine:SglangEngine", config=config)
    with serving(launch_of(model, root, context_length=CONTEXT, fields=fields), part) as url:
        yield Served(url=url, model=model, log=log)


def compared(sample: dict[str, Any], drawn: dict[tuple[int, ...], set[Answer]]) -> int:
    """How many answers it has; each is what the engine drew after exactly the tokens before it."""
    ids, mask, log_probs = (sample[name] for name in ("response_ids", "loss_mask", "log_probs"))
    place = answers = 0
    while place < len(ids):
        if not mask[place]:
            place += 1
            continue
        known = drawn[(*sample["prompt_ids"], *ids[:place])]
        ends = [place + len(tokens) for tokens, _ in known]
        (end,) = {end for end in ends if (tuple(ids[place:end]), tuple(log_probs[place:end])) in known}
        assert all(mask[place:end])
        place, answers = end, answers + 1
    return answers


@pytest.mark.parametrize("generator", GENERATORS)
def test_trained_tokens_are_the_engines(run: Run, served: Served, tmp_path: Path, generator: str) -> None:
    folder = tmp_path / "run"
    (tmp_path / "lookout.py").write_text(LOOKOUT)
    asked = [{"prompt": [{"role": "user", "content": f"look at {n}"}], "label": "call 5"} for n in range(8)]
    run(
        *("train", "--algo", "grpo", "--model", str(served.model), "--engine", "sglang"),
        *("--engine-url", served.url, "--engine.python", os.environ[PYTHON]),
        *("--data", str(write_jsonl(tmp_path / "train.jsonl", asked)), "--reward", "f1"),
        *("--generator", generator, *(flag.format(folder=tmp_path) for flag in GENERATORS[generator])),
        *("--steps", str(STEPS), "--prompts-per-step", str(PROMPTS), "--group-size", str(GROUP)),
        *("--max-prompt-tokens", "96", "--max-response-tokens", str(CONTEXT - 96)),
        *("--save-rollouts-every", "1", "--run-dir", str(folder)),
        limit=LIMIT_S,
        env={TOKEN_VARIABLE: TOKEN},
        packages=[str(tmp_path)],
    )
    drawn = served.answers()
    for row in rows(folder)[1:]:
        assert row["generator/turns"] == TURNS
        assert row["train/kl_engine_max"] < 1e-4
        lines = (folder / "samples" / f"rollout-{row['step']}.jsonl").read_text().splitlines()
        samples = [json.loads(line)["trajectory"] for line in lines]
        assert len(samples) == PROMPTS * GROUP
        assert [compared(sample, drawn) for sample in samples] == [TURNS] * len(samples)
