"""A run whose samples are the work of an agent, through the real command."""

import json
from pathlib import Path

import pytest
from command import Run, rows

AGENT = '''
import openai

async def solve(session):
    """Asks twice in one chat, and once in another, whose answer counts."""
    async with openai.AsyncOpenAI(base_url=session.openai_url, api_key=session.api_key) as client:
        chat = list(session.task["messages"])
        for _ in range(2):
            done = await client.chat.completions.create(model="any", messages=chat, max_tokens=8)
            chat += [done.choices[0].message, {"role": "user", "content": "1+"}]
        done = await client.chat.completions.create(model="any", messages=chat[-1:], max_tokens=8)
    session.report(reward=session.seed % 7, answer="12")
'''


@pytest.mark.timeout(500)
def test_agents_in_a_run(run: Run, tmp_path: Path) -> None:
    """Trainer and engine agree on every token of the turns, which would end the run otherwise."""
    agent, folder = tmp_path / "agent.py", tmp_path / "run"
    agent.write_text(AGENT)
    options = ("--generator", "session", "--generator.agent", f"{agent}:solve", "--generator.reward", "agent")
    sizes = ("--prompts-per-step", "2", "--group-size", "2", "--max-response-tokens", "32")
    less = ("--eval-every", "0", "--eval-prompts", "1", "--steps", "1", "--save-rollouts-every", "1")
    run("train", "--algo", "grpo", "--model", "qwen3", *options, *sizes, *less, "--run-dir", str(folder))
    (row,) = [row for row in rows(folder) if row["step"] == 1]
    assert (row["generator/turns"], row["generator/trajectories"]) == (3, 2)
    assert row["rollout/samples"] == 8, "two of each trajectory"
    assert row["train/kl_engine_max"] < 1e-4
    saved = [json.loads(line) for line in (folder / "samples" / "rollout-1.jsonl").read_text().splitlines()]
    assert {sample["response"] for sample in saved} == {"12"}
    assert {sample["score"] for sample in saved} <= set(range(7))
