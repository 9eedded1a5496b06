"""The program that plays environments of verifiers 0.3 and later.

`RLCORE_VERIFIERS_PYTHON` names an interpreter that has such verifiers; their harness needs `uv` on the PATH.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from rlcore import GenerationStatus, Prompt, Sample, Sampling
from rlcore.rollout.context import EngineContext
from rlcore_session import verifiers_program
from rlcore_session.config import SessionConfig
from rlcore_session.generator import SessionGenerator
from rlcore_testing.token_engine import CountingReward, TokenEngine

PYTHON = os.environ.get("RLCORE_VERIFIERS_PYTHON", "")
SUMS = """
import verifiers.v1 as vf

__all__ = ["SumsTaskset"]

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


async def played(python: str, number: int) -> Sample:
    engine = TokenEngine(lambda prompt, seed: "it is 6")
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    settings = json.dumps({"taskset": {"id": "sums_of_v1"}, "agent": agent})
    command = (python, str(verifiers_program.__file__), settings)
    generator = SessionGenerator(SessionConfig(command=command, reward="agent", timeout=300))
    prompt = Prompt(prompt_id="p", text="play", metadata={"seed": number})
    ctx = EngineContext(
        engine, engine.tokenizer, Sampling(max_tokens=500), CountingReward(), context_length=4000
    )
    try:
        pending = Sample(prompt=prompt, prompt_ids=(1,), group_id=0, index=0, rollout_id="0.0")
        [found] = await generator.generate(ctx, pending)
    finally:
        await generator.close()
    return found


async def test_other_verifiers_are_told() -> None:
    found = await played(sys.executable, 0)
    assert (found.status, found.failure) == (GenerationStatus.FAILED, "crashed")
    assert "verifiers 0.3 or later is needed in this environment" in found.metadata["agent_error"]


@pytest.mark.skipif(not PYTHON, reason="RLCORE_VERIFIERS_PYTHON names no interpreter")
async def test_an_episode_is_a_sample_with_the_environments_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sums_of_v1.py").write_text(SUMS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    right, wrong, none = [await played(PYTHON, number) for number in (3, 2, 9)]
    assert right.status is GenerationStatus.COMPLETED, right.metadata
    assert right.text == "it is 6"
    assert right.score is not None
    assert wrong.score is not None
    assert (right.score.value, right.score.parts, wrong.score.value) == (1, {"right": 1}, 0)
    assert "no task of number 9" in none.metadata["agent_error"]
