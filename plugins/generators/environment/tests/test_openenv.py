"""The environment that the package `openenv` makes, unchanged, on a server of its own."""

import asyncio
import importlib.util
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rlcore import ConfigError, EngineContext, GenerationStatus, Generator, Json, Prompt, Sample, Sampling
from rlcore_environment.adapters.openenv import OpenEnvEnvironment, OpenEnvServer, find_server
from rlcore_environment.config import EnvironmentConfig
from rlcore_environment.generator import EnvironmentGenerator
from rlcore_machine import free_port
from rlcore_testing.generators import GeneratorConformance
from rlcore_testing.token_engine import CountingReward, TokenEngine

pytestmark = pytest.mark.skipif(importlib.util.find_spec("openenv") is None, reason="needs openenv")
START_S = 60.0
SHOWN: Mapping[str, Json] = {"observation": "echoed_message"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What `openenv init` makes: an environment that repeats a message, for one session at a time."""
    folder = tmp_path_factory.mktemp("openenv")
    init = [sys.executable, "-m", "openenv.cli", "init", "echo_game", "-o", str(folder)]
    without_uv = {**os.environ, "PATH": "/usr/bin:/bin"}  # which would look for packages on the network
    subprocess.run(init, env=without_uv, check=True, capture_output=True, timeout=START_S)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "server.app:app", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder / "echo_game", stderr=subprocess.DEVNULL)
    try:
        await_health(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def await_health(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except urllib.error.URLError:
            assert process.poll() is None, "the server of openenv does not start"
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.full
class TestOpenEnv(GeneratorConformance):
    @pytest.fixture(autouse=True)
    def _server(self, url: str) -> None:
        self.url = url

    def generator(self) -> Generator:
        config = EnvironmentConfig(
            kind="openenv", environment=self.url, options=dict(SHOWN), max_turns=2, max_environments=1
        )
        return EnvironmentGenerator(config)


def sample(index: int = 0) -> Sample:
    prompt = Prompt(prompt_id="p", text="say")
    return Sample(prompt=prompt, prompt_ids=(1, 2), group_id=0, index=index, rollout_id=f"0.{index}")


@asynccontextmanager
async def begun(server: OpenEnvServer) -> AsyncIterator[tuple[OpenEnvEnvironment, str]]:
    """An episode, and what is observed first."""
    made = OpenEnvEnvironment(server)
    try:
        yield made, await made.reset(sample())
    finally:
        await made.close()


async def test_the_echo_environment(url: str) -> None:
    async with begun(find_server(url, SHOWN)) as (made, first):
        step = await made.step("hello")
    assert first == "Echo Game environment ready!"
    assert (step.observation, step.reward, step.done) == ("hello", 0.5, False)


async def test_without_a_field_the_whole_observation_is_shown(url: str) -> None:
    async with begun(find_server(url, {})) as (made, _):
        step = await made.step("hi")
    assert step.observation == '{"echoed_message": "hi", "message_length": 2}'


def test_samples_wait_for_the_servers_only_session(url: str) -> None:
    engine = TokenEngine(lambda prompt, seed: "ab")
    ctx = EngineContext(engine, engine.tokenizer, Sampling(max_tokens=200), CountingReward())

    async def play(**settings: Any) -> list[Sample]:
        config = EnvironmentConfig(
            kind="openenv", environment=url, options=dict(SHOWN), max_turns=2, **settings
        )
        generator = EnvironmentGenerator(config)
        return [*await asyncio.gather(*(generator.generate(ctx, sample(index)) for index in range(3)))]

    for found in asyncio.run(play(max_environments=1)):
        said = engine.tokenizer.decode(found.response_ids, skip_special_tokens=False)
        assert said == "Echo Game environment ready!ab<|im_end|>abab<|im_end|>ab"
        assert found.status is GenerationStatus.TRUNCATED
        assert [reward for _, reward in found.metadata["environment_turns"]] == [0.2, 0.2]
    assert "environment_crashed" in {found.failure for found in asyncio.run(play())}


async def test_an_action_that_the_server_refuses_is_told(url: str) -> None:
    json_actions = OpenEnvServer(find_server(url, {}).url, {}, "", {}, "")
    async with begun(json_actions) as (made, _):
        assert (await made.step("words")).metrics == {"invalid_actions": 1}
        told = await made.step('I choose {"massage": "hi"}.')
    assert told.metrics == {"invalid_actions": 1}
    assert "message: Field required" in told.observation


@pytest.mark.parametrize(
    ("kind", "text", "action"),
    [
        ("integer", "I take 3.", {"x": 3}),
        ("integer", "none", None),
        ("number", "-2.5 it is", {"x": -2.5}),
        ("array", "[1, 2]", {"x": [1, 2]}),
        ("array", "one", None),
    ],
)
def test_answers_become_actions(kind: str, text: str, action: dict[str, Any] | None) -> None:
    assert OpenEnvServer("", {}, "x", {"type": kind}, "").action(text) == action


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ("", '{"result": {"data": 7, "text": "ü"}, "error": null}'),
        ("result.text", "ü"),
        ("result.data", "7"),
        ("error", ""),
        ("result.data.deeper", ""),
    ],
)
def test_what_of_an_observation_is_shown(shown: str, told: str) -> None:
    result = {"result": {"data": 7, "text": "ü"}, "error": None, "metadata": {"x": 1}}
    server = OpenEnvServer("", {}, "", {}, shown)
    assert server.observation({"observation": result}) == told
    assert server.observation({"observation": {"metadata": {}}}) == ""


def test_what_leads_to_no_server_is_refused(url: str) -> None:
    for where, options, said in (
        ("echo", {}, "expected the URL"),
        ("http://127.0.0.1:1", {}, "no OpenEnv server answers"),
        (url, {"action": "massage"}, "found 'massage', expected one of message"),
        (url, {"colour": 1}, "colour"),
        (url, {"token_env": "NOT_SET_HERE"}, "NOT_SET_HERE is not set"),
    ):
        with pytest.raises(ConfigError, match=said):
            find_server(where, options)
