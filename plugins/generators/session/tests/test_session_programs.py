"""Agents that are programs of their own."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from waits import eventually, gone

from rlcore import ConfigError, GenerationStatus, RewardStatus, Sample
from rlcore_session.config import SessionConfig
from rlcore_session.generator import SessionGenerator
from rlcore_testing.token_engine import greeted

PROGRAM = str(Path(__file__).with_name("program_agent.py"))


async def made(*arguments: str, timeout: float = 120, keep: tuple[str, ...] = ()) -> Sample:
    config = SessionConfig(
        command=(sys.executable, PROGRAM, *arguments), reward="agent", timeout=timeout, keep_environment=keep
    )
    return await greeted(SessionGenerator(config))


async def test_a_program_finds_its_endpoint_and_reports() -> None:
    found = await made("answer")
    assert (found.status, found.text) == (GenerationStatus.COMPLETED, "mine"), found.metadata
    assert found.reward_status is RewardStatus.SCORED
    assert found.score is not None
    assert (found.score.value, found.score.parts) == (0.5, {"length": 12})
    assert bytes(found.response_ids[:-1]) == b"good morning"


async def test_a_program_gets_no_token_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = ("HF_TOKEN", "RAY_AUTH_TOKEN", "RLCORE_ENGINE_TOKEN", "WANDB_API_KEY", "ANTHROPIC_AUTH_TOKEN")
    for name in (*tokens, "SEARCH_KEY", "LC_TIME"):
        monkeypatch.setenv(name, f"{name} of the run")
    await made("environment", str(tmp_path / "found"), keep=("SEARCH_KEY",))
    found = json.loads((tmp_path / "found").read_text())
    assert not set(tokens) & set(found)
    assert (found["SEARCH_KEY"], found["LC_TIME"]) == ("SEARCH_KEY of the run", "LC_TIME of the run")
    assert found["PATH"] == os.environ["PATH"]
    assert {"OPENAI_API_KEY", "RLCORE_TASK_FILE"} <= set(found)


async def test_a_variable_that_is_kept_must_be_there() -> None:
    with pytest.raises(
        ConfigError, match=r"^--generator.keep-environment: found GONE, expected variables that are set\.$"
    ):
        await made("environment", "", keep=("GONE",))


def test_only_a_program_has_variables_to_keep() -> None:
    with pytest.raises(ValueError, match="keep_environment is of a program"):
        SessionConfig(agent="module:function", keep_environment=("PATH",))


@pytest.mark.parametrize(
    ("mode", "timeout", "failure", "detail"),
    [("crash", 120.0, "crashed", "exit code 3:\nhalf way"), ("hang", 2.0, "timed_out", "longer than 2 s")],
)
async def test_a_program_ends_with_everything_that_it_started(
    tmp_path: Path, mode: str, timeout: float, failure: str, detail: str
) -> None:
    found = await made(mode, str(tmp_path / "child"), timeout=timeout)
    assert (found.status, found.failure) == (GenerationStatus.FAILED, failure)
    assert detail in found.metadata["agent_error"]
    child = int((tmp_path / "child").read_text())
    await asyncio.to_thread(eventually, lambda: gone(child))  # a killed process takes a moment to go
